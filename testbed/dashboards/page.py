"""A dashboard around its panels: the variables to choose from, the rows, and the links to the other dashboards."""

from collections.abc import Iterable, Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from testbed.dashboards.panels import DATA_SOURCE, Panel

REPOSITORY = "https://git.example.com/ringproxy"
"""The address of this repository, which docs/how-to/measure.md replaces."""

TAG = "ringproxy"
EVERY = "namespace", "job"
"""The variables of all dashboards, besides the data source: the labels of whose sidecars to look at."""
_WIDTH = 24
"""The width of a page, as Grafana counts."""

_FIRING = 'ALERTS{{alertname=~"Ringproxy.+", alertstate="firing", {labels}}}'


def firing(labels: str) -> str:
    """Return the alerts that fire, of these labels."""
    return _FIRING.format(labels=labels)


def page(
    name: str,
    title: str,
    text: str,
    *,
    variables: Sequence[builders.QueryVariable],
    alerts: str,
    content: Mapping[str, Iterable[Panel]],
) -> models.Dashboard:
    """Return a dashboard of these rows of panels; `alerts` are the labels of alerts that its graphs show."""
    made = (
        builders.Dashboard(title)
        .uid(f"{TAG}-{name}")
        .description(text)
        .tags([TAG])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .variables([builders.DatasourceVariable("datasource").label("Data source").type("prometheus"), *variables])
        .with_variable(
            builders.TextBoxVariable("repository")
            .label("Runbook")
            .description("The address where the files of ringproxy's repository can be opened, for the panels' links.")
            .default_value(REPOSITORY)
            .current(models.VariableOption(text=REPOSITORY, value=REPOSITORY))
            .options([models.VariableOption(True, REPOSITORY, REPOSITORY)])
        )
        .link(
            builders.DashboardLink("ringproxy")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
    )
    for row, panels in content.items():
        made.with_row(builders.Row(row))
        for panel in panels:
            made.with_panel(panel)
    dashboard = made.build()
    _place(dashboard.panels or [])
    query = f"sum by (alertname) ({firing(alerts)})"
    shown = _Annotation("Alerts", DATA_SOURCE, enable=True, icon_color="red", expr=query)
    dashboard.annotations = models.AnnotationContainer([shown])
    return dashboard


def _place(panels: Sequence[models.Panel | models.RowPanel]) -> None:
    """Number the panels, and put each beside the one before, or below where the line is full: all of it are as high."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        panel.id_val = number
        place = panel.grid_pos
        assert place is not None
        if x + place.w > _WIDTH:
            x, y = 0, y + height
        place.x, place.y = x, y
        x, height = x + place.w, place.h


class _Annotation(models.AnnotationQuery):
    """An annotation for each alert, with the alert's name, of which the library's model knows nothing."""

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"titleFormat": "{{alertname}}"}


def choice(name: str, label: str, series: str, of: str) -> builders.QueryVariable:
    """Return a variable of one value: of the label `of` of these series."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATA_SOURCE)
        .query({"query": f"label_values({series}, {of})", "refId": "StandardVariableQuery"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def filtering(name: str, label: str, series: str) -> builders.QueryVariable:
    """Return a variable of any number of values of this label; where series lack the label, all of them count."""
    all_of_them = models.VariableOption(True, ["All"], ["$__all"])
    made = choice(name, label, series, name)
    return made.multi(True).include_all(True).all_value(".*").current(all_of_them)


def link_to(name: str, title: str, **chosen: str) -> builders.DashboardLink:
    """Return a link to another dashboard, with the values of its variables, and the time that is looked at."""
    values = "".join(f"&var-{variable}={value}" for variable, value in chosen.items())
    kept = "&".join(f"${{{variable}:queryparam}}" for variable in ("datasource", *EVERY))
    return builders.DashboardLink(title).url(f"/d/{TAG}-{name}?{kept}{values}&${{__url_time_range}}")
