"""The output of `ring-proxy group` for a sidecar's answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from proxy.cli import main
from proxy.commands.asking import QuestionError
from proxy.commands.group import MEMBERS_VIEW, show
from proxy.commands.keys import KEYS_VIEW

MEMBERS = [
    {
        "id": "a1",
        "client": "10.0.0.7:51412 (billing-0)",
        "host": "node-a",
        "here": True,
        "since": "2026-11-23T18:39:04Z",
        "stalled": False,
        "in_series": True,
        "unacked": 4,
        "shards": ["orders.0", "orders.1"],
        "wanted": 1,
    },
    {
        "id": "b1",
        "client": "\x1b[2Jevil",
        "host": "node-b",
        "here": False,
        "since": "2026-11-23T18:39:25Z",
        "stalled": True,
        "in_series": False,
        "unacked": 0,
        "shards": [],
        "wanted": 1,
    },
]
SHARDS: list[dict[str, Any]] = [
    {"shard": "orders.0", "holder": "a1", "holder_since_seconds": 25.92, "target": "a1", "ready": 0, "unacked": 4},
    {"shard": "orders.1", "holder": "a1", "holder_since_seconds": 7300, "target": "b1", "ready": 3, "unacked": 5},
    {"shard": "orders.2", "holder": None, "holder_since_seconds": None, "target": "b1", "ready": None, "unacked": None},
]
LAG = {"ready": 3, "unacked": 9, "messages": 12, "publish_rate": 2.04, "consume_rate": 3.5, "seconds_to_empty": 90.0}
ANSWER: dict[str, Any] = {
    "vhost": "shop",
    "exchange": "orders",
    "joined": True,
    "lag": LAG,
    "exact": False,
    "reasons": ["shard 'orders.1' is a classic queue"],
    "warnings": ["no limit"],
    "membership": "not connected yet",
    "members": MEMBERS,
    "shards": [
        {**shard, "waiting": shard["shard"] == "orders.1", "redelivered": redelivered, "worst": worst}
        for shard, redelivered, worst in zip(SHARDS, (4, 219, 0), (1, 73, 0), strict=True)
    ],
    "leaving": [{"client": "10.0.0.8:1 (billing-2)", "shard": "orders.2", "unacked": 7}],
    "refused": [{"client": "c1", "shard": "orders.2", "why": "403 ACCESS_REFUSED - no", "since_seconds": 12}],
    "moves": [{"shard": "orders.1", "from": "a1", "to": "b1", "why": "it is being raised", "since_seconds": 90}],
    "figures_age_seconds": 1.0,
}
POISON = "one message 73 times in the last minutes"
GHOST = "a consumer that is no member holds the unacked ones"
LINES = r"""
group        orders in virtual host shop, 2 members, 3 shards, not exact
lag          3 ready, 9 unacked, 2.0/s published, 3.5/s consumed, empty in 2 min
not exact    shard 'orders.1' is a classic queue
warning      no limit
not balanced not connected yet
member 1     10.0.0.7:51412 (billing-0) by node-a, since 2026-11-23T18:39:04Z, 4 unacked, in series
             has 2 shards, and should have 1: orders.0, orders.1
member 2     \x1b[2Jevil by node-b, since 2026-11-23T18:39:25Z, 0 unacked, gets no shard as it did not ack
             has 0 shards, and should have 1: none
leaving      10.0.0.8:1 (billing-2) has cancelled, with 7 unacked of orders.2
refused      c1 has no consumer on orders.2 for 12.0 s: 403 ACCESS_REFUSED - no
shard        orders.0, member 1 for 25.9 s, 0 ready, 4 unacked, 4 redelivered
shard        orders.1, member 1 for 2 h, 3 ready, 5 unacked, and no member gets them; GHOST, 219 redelivered, POISON
shard        orders.2, nobody, ? ready, ? unacked
moving       orders.1, from member 1 to member 2, for 2 min: it is being raised
"""


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """Serve JSON at these paths, 404 elsewhere, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer or {"detail": "no member here"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_group_in_lines() -> None:
    with answering({"/groups/shop/a%2Fb": ANSWER}) as url:
        assert show(url, "shop", "a/b", MEMBERS_VIEW, as_json=False) == LINES.strip("\n").replace(
            "GHOST", GHOST
        ).replace("POISON", POISON)


@pytest.mark.parametrize(
    ("lag", "line"),
    [
        (dict.fromkeys(LAG), "? ready, ? unacked, rates not known"),
        ({**LAG, "publish_rate": None, "consume_rate": None}, "3 ready, 9 unacked, rates not known"),
        ({**LAG, "seconds_to_empty": None}, "3 ready, 9 unacked, 2.0/s published, 3.5/s consumed, not getting empty"),
        ({**LAG, "ready": 0, "seconds_to_empty": 0.0}, "0 ready, 9 unacked, 2.0/s published, 3.5/s consumed"),
    ],
)
def test_the_line_of_the_lag(lag: dict[str, Any], line: str) -> None:
    with answering({"/groups/shop/orders": {**ANSWER, "lag": lag}}) as url:
        assert f"\nlag          {line}\n" in show(url, "shop", "orders", MEMBERS_VIEW, as_json=False)


def test_a_paused_shard_in_lines() -> None:
    paused = {"by": "anna", "since": "2026-11-27T14:16:37Z"}
    shards = [
        {**shard, "waiting": False, "paused": pause} for shard, pause in zip(SHARDS, (paused, None), strict=False)
    ]
    moves = [{"shard": "orders.0", "from": "a1", "to": None, "why": "it is paused", "since_seconds": 1}]
    with answering({"/groups/shop/orders": {**ANSWER, "shards": shards, "moves": moves}}) as url:
        assert show(url, "shop", "orders", MEMBERS_VIEW, as_json=False).splitlines()[-3:] == [
            "shard        orders.0, member 1 for 25.9 s, 0 ready, 4 unacked, paused by anna since 2026-11-27T14:16:37Z",
            "shard        orders.1, member 1 for 2 h, 3 ready, 5 unacked",
            "moving       orders.0, from member 1 to nobody, for 1.0 s: it is paused",
        ]


def test_a_group_without_members_at_the_sidecar_in_lines() -> None:
    shards = [
        {**SHARDS[2], "consumers": count, "waiting": False, "redelivered": 0, "worst": 0} for count in (0, 1, None)
    ]
    answer = ANSWER | {each: [] for each in ("members", "leaving", "refused", "moves", "warnings", "reasons")}
    with answering({"/groups/shop/orders": answer | {"joined": False, "exact": True, "shards": shards}}) as url:
        assert show(url, "shop", "orders", MEMBERS_VIEW, as_json=False).splitlines() == [
            "group        orders in virtual host shop, 3 shards, no member at this sidecar, exact",
            "lag          3 ready, 9 unacked, 2.0/s published, 3.5/s consumed, empty in 2 min",
            "shard        orders.2, 0 consumers, ? ready, ? unacked",
            "shard        orders.2, 1 consumer, ? ready, ? unacked",
            "shard        orders.2, ? consumers, ? ready, ? unacked",
        ]


KEYS_ANSWER = {
    "vhost": "shop",
    "exchange": "orders",
    "in_series": True,
    "keys": [
        {
            "shard": "orders.1",
            "client": "10.0.0.7:51412 billing-0",
            "key": "c17",
            "key_hash": "0" * 32,
            "state": "to be tried again",
            "since_seconds": 75.0,
            "tries": 3,
            "crashes": 0,
            "shard_stands": False,
            "due_seconds": 2.0,
            "waiting": 1,
            "message_id": "m\x1b",
            "bytes": 12,
            "fingerprint": "f" * 32,
        },
    ],
    "at_most": 1000,
    "elsewhere": [{"shard": "orders.2", "host": "node-b"}, {"shard": "orders.3", "host": None}],
}


def test_the_keys_that_wait_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    second = KEYS_ANSWER["keys"][0] | {  # type: ignore[index]
        "key": "",
        "state": "with the client",
        "due_seconds": None,
        "tries": 1,
        "crashes": 2,
        "shard_stands": True,
        "waiting": 2,
        "message_id": "",
    }
    answer = KEYS_ANSWER | {"keys": [*KEYS_ANSWER["keys"], second], "in_series": False}  # type: ignore[misc]
    with answering({"/groups/shop/orders/keys": answer}) as url:
        assert main(["group", "orders", "keys", "--vhost", "shop", "--sidecar", url]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "keys         orders in virtual host shop (not in series), 2 keys wait at this sidecar",
            "key          c17, shard orders.1, for 1 min: to be tried again in 2.0 s, returned 3 times,"
            " 1 message behind it",
            f"             message m\\x1b, 12 bytes, fingerprint {'f' * 32}, with 10.0.0.7:51412 billing-0",
            "key          (not known), shard orders.1, for 1 min: with the client, returned once, 2 crashes,"
            " 2 messages behind it, and its shard stands",
            f"             12 bytes, fingerprint {'f' * 32}, with 10.0.0.7:51412 billing-0",
            "elsewhere    orders.2: node-b",
            "elsewhere    orders.3: no sidecar that is known",
        ]
        full = {"keys": KEYS_ANSWER["keys"], "at_most": 1}
    with answering({"/groups/shop/orders/keys": KEYS_ANSWER | full}) as url:
        assert "shop, the 1 keys that wait for the longest at this sidecar" in show(
            *(url, "shop", "orders", KEYS_VIEW), as_json=False
        )


def test_a_group_as_json_in_the_default_virtual_host(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"/rings": {"default_vhost": "shop"}, "/groups/shop/orders": ANSWER}) as url:
        assert main(["group", "orders", "--sidecar", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


@pytest.mark.parametrize(
    "answer",
    [[], {"members": []}, {**ANSWER, "members": [1]}, {**ANSWER, "exact": "x"}, {**ANSWER, "moves": {}, "shards": 5}],
)
def test_what_is_no_sidecars_answer_is_told(answer: Any) -> None:
    with (
        answering({"/groups/shop/orders": answer}) as url,
        pytest.raises(QuestionError, match="not a sidecar's answer"),
    ):
        show(url, "shop", "orders", MEMBERS_VIEW, as_json=False)


def test_a_group_without_members_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({}) as url:
        assert main(["group", "orders", "--vhost", "shop", "--sidecar", url, "--watch"]) == 2
    assert "no member here" in capsys.readouterr().err
