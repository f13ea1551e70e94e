"""The console in a terminal: the lines that it makes of snapshots, whatever names strangers have chosen."""

import copy
import http.server
import itertools
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.cli import main
from proxy.commands import top
from proxy.commands.asking import TIMEOUT
from proxy.commands.top import ALL, picture

GROUP = {
    "exchange": "orders", "vhost": "shop", "members": 2, "shards": 3, "ready": 7, "publish_rate": 2.0,
    "consume_rate": 2.5, "seconds_to_empty": 14.0, "moving": 1,
}  # fmt: skip
EXCHANGE = {
    "exchange": "orders", "vhost": "shop", "state": "not routed", "why": "dead_letter", "destinations": 3,
    "rates": {"confirmed": 4.0, "nacked": 1.0},
}  # fmt: skip
FINDING = {
    "severity": 0, "title": "orders is not routed", "text": "A queue would dead-letter.", "section": "not-routed",
    "kind": "exchange", "vhost": "shop", "exchange": "orders",
}  # fmt: skip
SNAPSHOT: dict[str, Any] = {
    "overview": {
        "sidecar": "0123456789abcdef",
        "ready": True,
        "findings": {"shown": [FINDING], "of": 1},
        "rates": {"confirmed": 4.0, "nacked": 1.0},
        "in_flight": 2,
        "sessions": 3,
        "steps": [{"latency": {"amqp": [0.001, 0.02], "http": [None, None]}}],
        "groups": {"shown": [GROUP], "of": 1},
        "exchanges": {"shown": [EXCHANGE], "of": 60},
    },
    "detail": None,
}


def shard(name: str, holder: str | None, **more: Any) -> dict[str, Any]:
    usual = {
        "shard": name, "holder": holder, "ready": 0, "unacked": 0, "publish_rate": None, "consume_rate": None,
        "seconds_to_empty": None, "redelivered": 0, "waiting": False, "paused": None,
    }  # fmt: skip
    return {**usual, **more}


DETAIL = {
    "lag": {"ready": 7, "unacked": 1, "publish_rate": 2.0, "consume_rate": 2.5, "seconds_to_empty": 14.0},
    "lag_history": {"since": 0.0, "until": 1800.0, "ready": [None, 40, 3, 7]},
    "reasons": ["no quorum queue"],
    "membership": None,
    "members": [
        {
            "id": "1",
            "client": "10.0.0.7:5 billing-0",
            "shards": ["orders.1"],
            "wanted": 1,
            "unacked": 1,
            "stalled": False,
        }
    ],
    "shards": [
        shard("orders.1", "1", ready=7),
        shard("orders.2", None, waiting=True),
        shard("orders.3", None, ready=None),
        shard("orders.4", "1", paused={"by": "anna", "since": "2026"}),
        shard("orders.5", "1"),
    ],
    "moves": [
        {"shard": "orders.5", "from": "1", "to": None, "since_seconds": 3.0, "why": "the owner has yet to let go"}
    ],
    "keys": [
        {
            "key": "c17",
            "key_hash": "",
            "shard": "orders.1",
            "state": "stopped",
            "since_seconds": 90.0,
            "tries": 3,
            "waiting": 2,
        }
    ],
}


def text(snapshot: Any, subject: top.Subject = ALL) -> str:
    return "\n".join(line.text for line in picture(snapshot, subject))


def test_the_overview_names_what_is_wrong_first_and_leads_to_each_subject() -> None:
    shown = text(SNAPSHOT).splitlines()
    assert shown[0] == "ringproxy, sidecar 01234567, ready"
    assert shown[2:5] == [
        "CRITICAL  orders is not routed",
        "          A queue would dead-letter.",
        "          docs/how-to/troubleshoot.md#not-routed",
    ]
    assert "4.0/s succeed, 1.0/s fail, 2 wait for a confirm, 3 AMQP clients" in shown
    assert "confirm latency, amqp: p50 1.0 ms, p99 20.0 ms" in shown
    assert "orders  shop          2        3       7        2.0/s  2.5/s  14.0 s    1" in shown
    assert "orders    shop          not routed (dead_letter)  3       4.0/s    1.0/s" in shown
    assert shown[-1] == "59 more exchanges are not shown."
    opens = [line.opens for line in picture(SNAPSHOT, ALL) if line.opens]
    assert opens == [("exchange", "shop", "orders"), ("group", "shop", "orders"), ("exchange", "shop", "orders")]


def test_a_sidecar_without_anything() -> None:
    empty: dict[str, Any] = copy.deepcopy(SNAPSHOT)
    for what in ("findings", "groups", "exchanges"):
        empty["overview"][what] = {"shown": [], "of": 0}
    empty["overview"] |= {"rates": {}, "steps": []}
    assert "Nothing is wrong, as far as this sidecar sees." in text(empty)
    assert not [line for line in picture(empty, ALL) if line.opens]
    assert "This sidecar knows no group x in shop" in text(empty, ("group", "shop", "x"))


def test_a_group_shows_members_with_their_shards_moves_and_blocked_keys() -> None:
    shown = text({**SNAPSHOT, "detail": DETAIL}, ("group", "shop", "orders")).splitlines()
    assert "7 wait, 1 at work, 2.0/s in, 2.5/s out, empty in 14.0 s" in shown
    assert "in the last 30 min 3 to 40 waited" in shown
    assert "not exact: no quorum queue" in shown
    assert "10.0.0.7:5 billing-0, 1 of 1, 1 unacked: 1+ 4= 5>" in shown
    assert "nobody: 2! 3?" in shown
    assert any(line.startswith("orders.5  10.0.0.7:5 billing-0  nobody  3.0 s") for line in shown)
    assert any(line.startswith("c17          orders.1  stopped  2 min") for line in shown)
    assert not any("not routed" in line for line in shown)


def test_members_on_one_connection_have_their_own_shards() -> None:
    group: dict[str, Any] = copy.deepcopy(DETAIL)
    group["members"] = [{**group["members"][0], "id": each} for each in ("1", "2")]
    group["shards"] = [shard("orders.1", "1"), shard("orders.2", "2"), shard("orders.3", "has left")]
    shown = text({**SNAPSHOT, "detail": group}, ("group", "shop", "orders")).splitlines()
    assert [line.rpartition(": ")[2] for line in shown if "10.0.0.7:5 billing-0, 1 of 1" in line] == ["1.", "2."]
    assert "nobody: 3." in shown


def test_a_detail_that_cannot_be_made_is_told() -> None:
    assert "A defect" in text({**SNAPSHOT, "fault": "A defect of ringproxy"}, ("group", "shop", "orders"))


def test_a_chosen_row_stays_chosen_as_others_come_and_go() -> None:
    a, b, c = (("exchange", "shop", name) for name in "abc")
    assert top.follow([a, b], 1, [c, a, b]) == 2
    assert top.follow([a, b], 1, [b, a, b]) == 2
    assert top.follow([b, a, b], 0, [c, b, a, b]) == 1
    assert top.follow([b, a, b], 0, [a, b]) == 1
    assert top.follow([a, b, c], 2, [a, b]) == 1
    assert top.follow([a], 0, []) == top.follow([], 0, [a]) == 0


def test_an_exchange_shows_what_went_where() -> None:
    detail = {
        "rates": {"confirmed": 4.0},
        "hashed": "routing_key",
        "age_seconds": 1.0,
        "sent": 4,
        "destinations": [{"name": "orders.1", "share": 0.5, "sent": 1}, {"name": "orders.2", "share": 0.5, "sent": 3}],
        "changes": [{"at": "2026", "moved": 0.25, "what": "+ orders.2", "why": "a declaration"}],
    }
    shown = text({**SNAPSHOT, "detail": detail}, ("exchange", "shop", "orders")).splitlines()
    assert "CRITICAL  orders is not routed" in shown
    assert "orders.2     50.00 %   75.00 %   3" in shown
    assert "2026        25.00 %  + orders.2  a declaration" in shown


def test_no_name_steers_the_terminal() -> None:
    hostile: dict[str, Any] = copy.deepcopy(SNAPSHOT)
    for of in (hostile["overview"]["exchanges"]["shown"][0], hostile["overview"]["findings"]["shown"][0]):
        of |= {"exchange": "\x1b[2J\u202e", "title": "\x1b[2J"}
    assert all(line.text.isprintable() for line in picture(hostile, ALL))


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Yield the URL of a server that answers everything so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_without_a_terminal_one_picture_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b"data: %b\n\n" % json.dumps(SNAPSHOT).encode()) as url:
        assert main(["top", "--sidecar", url]) == 0
    assert capsys.readouterr().out.splitlines() == text(SNAPSHOT).splitlines()


def test_an_unknown_terminal_is_told() -> None:
    master, slave = pty.openpty()
    try:
        with answering(200, b"data: %b\n\n" % json.dumps(SNAPSHOT).encode()) as url:
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import sys; from proxy.cli import main; sys.exit(main(['top', '--sidecar', {url!r}]))",
                ],
                env={**os.environ, "TERM": "no-such-kind"},
                stdin=slave,
                stdout=slave,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert "TERM='no-such-kind'" in done.stderr
    assert "set TERM" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"detail": "there is no endpoint"}', "is its admin_console false"),
        (429, b'{"detail": "12 pages are open"}', "answered 429: 12 pages are open"),
        (200, b"", "the stream ended before its first event"),
        (200, b"data: {}\n\n", "not a sidecar's answer"),
        (200, b'data: {"overview": {}, "detail": null}\n\n', "not a sidecar's answer"),
        (200, b"data: no JSON\n\n", "no answer"),
    ],
)
def test_an_answer_that_is_none_is_told(
    capsys: pytest.CaptureFixture[str], status: int, body: bytes, said: str
) -> None:
    with answering(status, body) as url:
        assert main(["top", "--sidecar", url]) == 2
    assert said in capsys.readouterr().err


def test_a_sidecar_that_makes_no_snapshots_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0.0, 2 * TIMEOUT)
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with answering(200, b": \n\n" * 3) as url:
        assert main(["top", "--sidecar", url]) == 2
    assert "it makes no snapshots; its log has the reason" in capsys.readouterr().err


def test_an_address_that_is_no_url_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--sidecar", "localhost"]) == 2
    assert "'localhost' is not a URL" in capsys.readouterr().err
