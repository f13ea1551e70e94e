"""The kinds of panels that the dashboards consist of, and how they look.

A *tile* has one number of now, and the colour of the alert it belongs to. A *graph* has lines over time. *Bars* compare
the largest of many. A panel of which Prometheus has no series says why, in place of "No data".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import yaml
from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((Path(__file__).parents[2] / "deploy/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
DATA_SOURCE = models.DataSourceRef("prometheus", "${datasource}")

Panel = Builder[models.Panel]
P = TypeVar("P", stat.Panel, timeseries.Panel, bargauge.Panel, heatmap.Panel, table.Panel)

_COLORS = {"critical": "red", "warning": "orange"}


class Query(NamedTuple):
    """An expression of PromQL, and the name of each of its series."""

    expression: str
    legend: str


def or_zero(expression: str, present: str) -> str:
    """Return an expression that gives 0 where it had no series, while `present`, a number without labels, has one."""
    return f"{expression} or 0 * {present}"


def began_or_grew(counter: str, span: str) -> str:
    """Return by how much counters grew; all of a series that began in this time counts, its first sample too."""
    return f"(({counter} unless {counter} offset {span}) or increase({counter}[{span}]))"


def tile(
    title: str,
    text: str,
    expression: str,
    *,
    none: str,
    alert: str = "",
    bad: float | None = None,
    good: float | None = None,
    unit: str = "short",
    words: Mapping[int, str] | None = None,
) -> Panel:
    """Return a number that has its alert's colour from `bad` on, or below `good`; `words` stand for numbers."""
    color = _color(alert)
    if bad is not None:
        steps = [models.Threshold(None, "green"), models.Threshold(bad, color)]
    elif good is not None:
        steps = [models.Threshold(None, color), models.Threshold(good, "green")]
    else:
        steps = [models.Threshold(None, "blue")]
    panel = (
        stat.Panel()
        .unit(unit)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(*steps))
        .reduce_options(_last())
        .color_mode(BigValueColorMode.BACKGROUND)
        .graph_mode(BigValueGraphMode.NONE)
        .with_target(_query(Query(expression, "")).instant())
    )
    # Without a number a tile would have the colour of its lowest step, which is green.
    nothing = models.ValueMappingResult(none, "#808080")
    mappings: list[models.ValueMapping] = [
        models.SpecialValueMap(models.DashboardSpecialValueMapOptions(models.SpecialValueMatch.NULL_AND_NAN, nothing))
    ]
    if words:
        mappings.append(models.ValueMap({str(n): models.ValueMappingResult(word) for n, word in words.items()}))
    panel.mappings(mappings)
    return _described(panel, title, text, none, alert).span(3).height(4)


def graph(
    title: str,
    text: str,
    *queries: Query,
    none: str,
    unit: str = "short",
    alert: str = "",
    bad: float | None = None,
    stacked: bool = False,
    width: int = 8,
) -> Panel:
    """Return lines over time, with a dashed one at `bad`, from which the alert fires."""
    panel = (
        timeseries.Panel()
        .unit(unit)
        .min(0)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .fill_opacity(20 if stacked else 5)
        .show_points(VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if bad is not None:
        panel.thresholds(_thresholds(models.Threshold(None, "transparent"), models.Threshold(bad, _color(alert))))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    for number, query in enumerate(queries):
        panel.with_target(_query(query, number).range())
    return _described(panel, title, text, none, alert).span(width).height(8)


def bars(
    title: str, text: str, query: Query, *, none: str, unit: str = "short", link: builders.DashboardLink | None = None
) -> Panel:
    """Return a bar for each series of now; a click on it follows `link`."""
    panel = (
        bargauge.Panel()
        .unit(unit)
        .min(0)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(models.Threshold(None, "blue")))
        .reduce_options(_last())
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .with_target(_query(query).instant())
    )
    if link:
        panel.data_links([link])
    return _described(panel, title, text, none).span(8).height(8)


def heat(title: str, text: str, expression: str, *, unit: str, none: str) -> Panel:
    """Return a heat map of the buckets of a histogram."""
    panel = (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .with_target(_query(Query(expression, "{{le}}")).range().format(PromQueryFormat.HEATMAP))
    )
    return _described(panel, title, text, none).span(8).height(8)


def rows(title: str, text: str, expression: str, *, none: str, links: Mapping[str, builders.DashboardLink]) -> Panel:
    """Return a table of the labels of each series of now; `links` are those of its columns."""
    panel = (
        table.Panel()
        .with_target(_query(Query(expression, "")).instant().format(PromQueryFormat.TABLE))
        .with_transformation(
            models.DataTransformerConfig("organize", options={"excludeByName": {"Time": True, "Value": True}})
        )
    )
    for column, link in links.items():
        panel.override_by_name(column, [models.DynamicConfigValue("links", [link.build()])])
    return _described(panel, title, text, none).span(24).height(6)


def runbook(section: str) -> str:
    """Return the address of a section of this repository's documents."""
    return f"${{repository}}/{section}"


def _described(panel: P, title: str, text: str, none: str, alert: str = "") -> P:
    """Give a panel what every one has: its title and description, what it says without series, its alert's section."""
    panel.title(title).description(text).datasource(DATA_SOURCE).no_value(none)
    if alert:
        section = ALERTS[alert]["annotations"]["runbook_url"]
        panel.links([builders.DashboardLink(f"{alert}: what to do").url(runbook(section)).target_blank(True)])
    return panel


def _color(alert: str) -> str:
    return _COLORS[ALERTS[alert]["labels"]["severity"]] if alert else "orange"


def _query(query: Query, number: int = 0) -> prometheus.Dataquery:
    made = prometheus.Dataquery().datasource(DATA_SOURCE).ref_id(chr(ord("A") + number))
    return made.expr(query.expression).legend_format(query.legend)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(*steps: models.Threshold) -> builders.ThresholdsConfig:
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(list(steps))
