"""The output of `ring-proxy group EXCHANGE pause` and `resume` for what sidecars answer."""

from typing import Any

import pytest

from proxy.cli import main
from proxy.commands import pause
from proxy.groups.pauses import Heeded, PauseOrder
from proxy.settings.config import Settings

KEPT = "pause        kept in virtual host shop: all shards of the group orders"
UNKNOWN = "kept, and counts once 'o.9' is a shard of the group, which it is not here"
NO_ANSWER = (
    "no sidecar with a member of orders has a groups_operators that names 'guest': see that it does on all of them"
)


@pytest.mark.parametrize(
    ("answers", "status", "lines"),
    [
        (
            [Heeded("b", "", 2, ("o.1", "o.2"), 3), Heeded("a", "", 2, ("o.1", "o.2"))],
            0,
            [
                KEPT,
                "a            paused: o.1, o.2",
                "b            paused: o.1, o.2; its clients have yet to ack 3 messages of these",
            ],
        ),
        ([], 1, [KEPT, f"no answer    {NO_ANSWER}"]),
        (
            [Heeded("a", "", 3, ("o.1",)), Heeded("b", UNKNOWN, 3)],
            1,
            [
                KEPT,
                "a            paused: o.1",
                f"b            goes on as before: {UNKNOWN}",
                "no answer    1 of 3 sidecars; see that groups_operators names 'guest' on all of them",
            ],
        ),
        ([Heeded("a", UNKNOWN), Heeded("b", UNKNOWN)], 2, [f"ring-proxy: pause: a: {UNKNOWN}"]),
    ],
)
def test_the_lines_tell_what_every_sidecar_did(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[Heeded],
    status: int,
    lines: list[str],
) -> None:
    given = list[Any]()

    async def sent(settings: Settings, vhost: str, order: PauseOrder) -> list[Heeded]:
        given.extend((vhost, order.verb, order.group, order.shard))
        return answers

    monkeypatch.setattr(pause, "_sent", sent)
    assert main(["group", "orders", "pause", "--broker-url", "amqp://guest:guest@localhost/shop"]) == status
    told = capsys.readouterr()
    assert (told.out + told.err).splitlines() == lines
    assert given == ["shop", "pause", "orders", ""]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["pause", "--shard", "x" * 256], "pause: Expected `str` of length <= 255 - at `$.shard`"),
        (["--json", "resume"], "resume: --json is of the report, which resume does not print"),
        (["--sidecar", "http://a", "pause"], "pause: --sidecar is of the report, which pause does not print"),
    ],
)
def test_a_mistake_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], fault: str) -> None:
    assert main(["group", "orders", *arguments]) == 2
    assert capsys.readouterr().err.rstrip() == f"ring-proxy: {fault}"
