"""A new version of the settings file changes settings at once, at the next start, or not at all."""

import dataclasses
import logging
from collections.abc import Collection
from pathlib import Path

import pytest

from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.settings.reload import LIVE, SettingsInForce, changes, line, without_effect
from proxy.settings.sources import Sources


class Case:
    """Settings in force, with their file, and what was applied."""

    def __init__(self, folder: Path, text: str, environment: dict[str, str], flags: dict[str, str]) -> None:
        self.file = folder / "ringproxy.toml"
        self.file.write_text(text)
        self.applied: list[tuple[Settings, Collection[str]]] = []
        self.in_force = SettingsInForce(Sources(self.file, environment, flags))
        self.in_force.apply = lambda settings, names: self.applied.append((settings, names))

    def reload(self, text: str) -> None:
        assert self.in_force.watched is not None
        self.file.write_text(text)
        self.in_force.watched.refresh(asked=True)


@pytest.fixture
def case(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Case:
    caplog.set_level(logging.INFO)
    environment = {"RINGPROXY_MAX_BATCH": "7", "PATH": "/"}
    return Case(tmp_path, 'route = ["a"]\n', environment, {"max_body": "5"})


def test_live_settings_are_patterns_limits_and_the_log_level() -> None:
    limits = {f.name for f in dataclasses.fields(Settings) if f.name.startswith("max_")}
    assert {"route", "shadow", "pass_", "groups", "groups_in_series", "route_share", "log_level"} | limits == LIVE


def test_live_settings_come_into_force_and_others_wait_for_a_restart() -> None:
    now = Settings(groups=("a",))
    new = Settings(groups=("b",), groups_in_series=("b",), route=(), max_sessions=5, drain_time=3, log_level="error")
    found = changes(now, new)
    assert found.live == ("route", "groups", "groups_in_series", "max_sessions", "log_level")
    assert found.restart == ("drain_time",)
    assert found.in_force == dataclasses.replace(new, drain_time=20)
    assert changes(now, now) == (now, (), ())


@pytest.mark.parametrize(("before", "after"), [((), ("a",)), (("a",), ())])
def test_a_sidecar_without_groups_gets_some_by_a_restart_only(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    found = changes(Settings(groups=before, groups_in_series=before), Settings(groups=after, groups_in_series=after))
    assert (found.live, found.restart) == ((), ("groups", "groups_in_series"))


def test_live_settings_that_contradict_what_waits_for_a_restart_are_a_mistake() -> None:
    now = Settings(groups=("a",), groups_dead_letter="dead")
    with pytest.raises(ConfigError) as caught:
        changes(now, Settings(groups=("dead",), groups_dead_letter="other"))
    assert str(caught.value) == (
        "groups_dead_letter: 'dead' is a group itself; name another exchange;"
        " groups_dead_letter would have to change first, which needs a restart"
    )


def test_what_the_file_says_is_applied_together(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.reload('route = ["b"]\nmax_sessions = 9\ndrain_time = 3\nmax_batch = 8\nmax_body = 5\n')
    ((settings, names),) = case.applied
    assert (settings.route, settings.max_sessions, settings.drain_time, settings.max_batch) == (("b",), 9, 20, 7)
    assert names == ("route", "max_sessions")
    assert case.in_force.now is settings
    assert case.in_force.restart == ("drain_time",)
    assert caplog.messages == [
        'settings: route: ["a"] -> ["b"]',
        "settings: max_sessions: 1000 -> 9",
        "settings: drain_time: 20.0 -> 3.0, needs a restart",
        "settings: max_batch in the file has no effect: the environment or a flag wins",
        f"read again: {case.file}",
    ]
    case.reload('route = ["b"]\nmax_sessions = 9\n')
    assert len(case.applied) == 1
    assert not case.in_force.restart


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('route = ["b"]\nmax_boddy = 3\n', "{file}: unknown setting 'max_boddy'; did you mean max_body?"),
        ('route = ["b"]\nmax_sessions = "many"\n', "{file}: max_sessions: 'many' is not a whole number from 0 up"),
        ('route = ["b"]\nmax_sessions = 0\n', "max_sessions: 0 must be at least 1"),
        ('route = ["b"', "{file}: not TOML: "),
    ],
)
def test_a_mistake_changes_nothing(case: Case, caplog: pytest.LogCaptureFixture, text: str, fault: str) -> None:
    before = case.in_force.now
    case.reload(text)
    assert case.in_force.now is before
    assert case.applied == []
    assert case.in_force.fault.startswith(fault.format(file=case.file))
    assert caplog.messages == [f"{case.in_force.fault}; what was read before stays in force"]
    case.reload('route = ["a"]\n')
    assert (case.in_force.fault, case.applied) == ("", [])


@pytest.mark.parametrize("text", ["", "# route\n"])
def test_a_file_that_has_lost_all_its_settings_is_refused(case: Case, text: str) -> None:
    case.reload(text)
    assert case.in_force.fault == f"{case.file}: has no settings; it may be half written"
    assert case.applied == []


def test_a_file_that_has_lost_what_needs_a_restart_is_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, 'drain_time = 20\nmax_sessions = 9\ngroups = ["a"]\n', {}, {})
    for text, lost in (
        ('max_sessions = 9\ngroups = ["a"]\n', "drain_time"),
        ("max_sessions = 9\ndrain_time = 20\n", "groups"),
        ("max_sessions = 8\n", "drain_time, groups"),
    ):
        case.reload(text)
        why = f"{case.file}: lacks {lost}; it may be half written (dropping this needs a restart)"
        assert (case.in_force.fault, case.applied) == (why, [])
    case.reload('drain_time = 20\ngroups = ["a"]\n')
    assert (case.in_force.fault, case.in_force.now.max_sessions) == ("", 1000)


@pytest.mark.parametrize(("before", "after"), [("info", "error"), ("error", "info")])
def test_changes_are_logged_at_the_level_that_shows_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: str, after: str
) -> None:
    case = Case(tmp_path, f'log_level = "{before}"\n', {}, {})
    root = logging.getLogger()
    was = root.level
    try:
        root.setLevel(before.upper())
        case.in_force.set_level = lambda level: root.setLevel(level.upper())
        case.reload(f'log_level = "{after}"\n')
        assert root.level == getattr(logging, after.upper())
    finally:
        root.setLevel(was)
    assert f'settings: log_level: "{before}" -> "{after}"' in caplog.messages


def test_a_defect_while_settings_come_into_force_is_a_fault(case: Case) -> None:
    before, apply = case.in_force.now, case.in_force.apply

    def broken(settings: Settings, names: Collection[str]) -> None:
        raise RuntimeError("no")

    case.in_force.apply = broken
    case.reload('route = ["b"]\ndrain_time = 3\n')
    assert case.in_force.now is before
    assert case.in_force.fault == (
        f"{case.file}: cannot be put into force as a whole: RuntimeError: no; restart the sidecar"
    )
    assert case.in_force.restart == ()
    case.in_force.apply = apply
    case.reload('route = ["b"]\n')
    assert (case.in_force.fault, case.in_force.now.route) == ("", ("b",))


def test_a_file_that_was_empty_at_the_start_may_stay_so(tmp_path: Path) -> None:
    case = Case(tmp_path, "", {}, {})
    case.reload("")
    assert (case.in_force.fault, case.applied) == ("", [])


def test_the_report_has_every_setting_with_its_origin_and_no_password(case: Case) -> None:
    case.reload('broker_url = "amqp://me:secret@h/"\nsync_interval = 3\n')
    report = case.in_force.report()
    assert report["file"] == str(case.file)
    assert report["fault"] is None
    assert report["needs_restart"] == ["broker_url", "sync_interval"]
    settings = report["settings"]
    assert settings["broker_url"] == {"value": "amqp://guest:***@localhost:5672/", "origin": "file"}
    assert settings["pass"] == {"value": [], "origin": "default"}
    assert settings["route"] == {"value": ["*"], "origin": "default"}
    assert settings["max_body"] == {"value": 5, "origin": "flag"}
    assert settings["max_batch"] == {"value": 7, "origin": "environment"}
    assert settings["http_listen"] == {"value": "127.0.0.1:15680", "origin": "default"}
    assert settings["tokens_file"] == {"value": None, "origin": "default"}


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    in_force = SettingsInForce(Sources(None, {}, {}))
    assert (in_force.now, in_force.watched, in_force.fault) == (Settings(), None, "")
    assert in_force.report()["file"] is None


def test_a_value_that_is_not_set_is_said_to_be_so() -> None:
    assert line("tokens_file", Settings(), Settings(tokens_file=Path("/t"))) == 'tokens_file: not set -> "/t"'
    assert without_effect(Settings(), {"max_body": 3, "max_batch": 10_000}, {"max_body", "max_batch"}) == ["max_body"]
