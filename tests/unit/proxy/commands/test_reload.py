"""A sidecar's answer about its settings, and what a file would change there; real sidecars: tests/integration."""

from pathlib import Path
from typing import Any

import pytest

from proxy.commands import reload
from proxy.commands.asking import QuestionError
from proxy.commands.reload import check
from proxy.settings.parse import ConfigError
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import Sources


class Sidecar:
    """The answers of a sidecar with these flags."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **flags: str) -> None:
        self.settings: Any = SettingsInForce(Sources(None, {}, flags)).report() | {"file": "/ringproxy.toml"}
        self.rings: dict[str, Any] = {"exchanges": []}
        monkeypatch.setattr(reload, "ask", lambda sidecar, path: self.settings)
        monkeypatch.setattr(reload, "rings", lambda sidecar: self.rings)


def test_passwords_are_not_compared_and_flags_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Sidecar(monkeypatch, management_url="http://me:old@h", max_batch="7")
    file = tmp_path / "new.toml"
    file.write_text('broker_url = "amqp://guest:other@localhost:5672/"\nmanagement_url = "http://me:new@h"\n')
    # The password of a URL in the file cannot be compared, and that of a flag stays whatever the file says.
    assert check("", file) == (["nothing changes"], True)
    file.write_text('max_batch = 8\nbroker_url = "amqp://localhost:5672/"\n')
    told = check("", file)
    assert told.lines == [
        'broker_url: "amqp://guest:***@localhost:5672/" -> "amqp://localhost:5672/", needs a restart',
        "max_batch: no effect, as a flag of the sidecar wins",
    ]
    assert not told.takes_effect


def test_exchanges_are_told_by_how_their_modes_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sidecar = Sidecar(monkeypatch)
    modes = {"a": "route", "b": "route", "c": "shadow", "d": "pass"}
    sidecar.rings["exchanges"] = [{"vhost": "/", "exchange": name, "mode": mode} for name, mode in modes.items()]
    file = tmp_path / "new.toml"
    file.write_text('route = ["d"]\n')
    assert check("", file).lines == [
        'route: ["*"] -> ["d"]',
        "pass -> route: exchange 'd' in '/'; from then on their keys go to other queues",
        "route -> pass: exchange 'a' in '/', 'b' in '/'; from then on their keys go to other queues",
        "shadow -> pass: exchange 'c' in '/'",
        "exchanges that the sidecar has not read are not in this list",
    ]
    file.write_text('log_level = "debug"\n')
    assert check("", file).lines[0] == 'log_level: "info" -> "debug"'
    assert "exchanges that the sidecar has not read are not in this list" not in check("", file).lines


def test_a_sidecar_without_a_settings_file_takes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Sidecar(monkeypatch).settings["file"] = None
    (tmp_path / "new.toml").write_text("max_body = 3\n")
    assert check("", tmp_path / "new.toml") == (["the sidecar has no settings file; start it with --config"], False)


def test_what_the_sidecar_would_refuse_as_half_written_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started, new = tmp_path / "ringproxy.toml", tmp_path / "new.toml"
    started.write_text('route = ["a"]\ndrain_time = 20\n')
    in_force = SettingsInForce(Sources(started, {}, {}))
    assert in_force.watched is not None
    started.write_text('route = ["a"]\ndrain_time = 20\nsync_interval = 3\n')
    in_force.watched.refresh(asked=True)
    Sidecar(monkeypatch).settings.update(in_force.report())
    new.write_text("")
    with pytest.raises(ConfigError, match="has no settings; it may be half written"):
        check("", new)
    new.write_text('route = ["a"]\nsync_interval = 3\n')
    with pytest.raises(ConfigError, match="lacks drain_time; it may be half written"):
        check("", new)
    new.write_text('route = ["a"]\ndrain_time = 20\n')
    assert check("", new) == (["nothing changes"], True)


def test_the_percentage_of_keys_that_move_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sidecar = Sidecar(monkeypatch, route_share="10")
    sidecar.rings["exchanges"] = [
        {"vhost": "/", "exchange": "a", "mode": "route", "route_share": 10.0},
        {"vhost": "/", "exchange": "b", "mode": "route", "passed": "type"},
        {"vhost": "/", "exchange": "c", "mode": "shadow", "passed": "shadow"},
        {"vhost": "/", "exchange": "d", "mode": "route", "route_share": 10.0},
    ]
    sidecar.settings["settings"]["route_share"]["origin"] = "file"  # a flag would win
    file = tmp_path / "new.toml"
    file.write_text('route_share = 12.5\npass = ["d"]\n')
    assert check("", file).lines[2:] == [
        "another route_share: exchange 'a' in '/'; from then on 2.5% of their keys go to other queues",
        "route -> pass: exchange 'd' in '/'; from then on 10% of their keys go to other queues",
        "shadow -> route: exchange 'c' in '/'; from then on 12.5% of their keys go to other queues",
        "exchanges that the sidecar has not read are not in this list",
    ]


@pytest.mark.parametrize("answer", [[], {}, {"settings": []}, {"settings": {"route": {}}}, {"settings": {"x": 1}}])
def test_what_is_no_answer_about_settings_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: object
) -> None:
    Sidecar(monkeypatch).settings = answer
    (tmp_path / "new.toml").touch()
    with pytest.raises(QuestionError, match="not a sidecar's settings"):
        check("http://h", tmp_path / "new.toml")


def test_a_sidecar_of_another_release_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sidecar = Sidecar(monkeypatch)
    (tmp_path / "new.toml").touch()
    sidecar.settings["settings"]["max_future"] = {"value": 3, "origin": "default"}
    with pytest.raises(QuestionError, match="another release"):
        check("http://h", tmp_path / "new.toml")
    del sidecar.settings["settings"]["max_future"]
    del sidecar.settings["settings"]["max_body"]
    with pytest.raises(QuestionError, match="another release"):
        check("http://h", tmp_path / "new.toml")
