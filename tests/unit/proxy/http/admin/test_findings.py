"""Findings: each fault has one, the worst stands first, and each links a section of the runbook that there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.http.admin.console.findings import MOST_RIGHTS, NOTED_AFTER, Finding, Severity, findings
from proxy.http.admin.console.overview import ExchangeState, Fault, GroupState, Overview
from proxy.settings.missing_right import MissingRight

ROOT = Path(__file__).parents[5]
RUNBOOK = (ROOT / "docs/how-to/troubleshoot.md").read_text()
SECTIONS = {title.lower().replace(" ", "-") for title in re.findall("^## (.*)$", RUNBOOK, flags=re.M)}
FLEET_WIDE = {
    "the-fleet-disagrees",
    "native-publishers",
    "group-without-members",
    "not-scraped",
    "pipeline-fails",
    "pipeline-findings",
    "topology-not-applied",
}
"""Sections about what no sidecar sees alone."""


def exchange(**changes: Any) -> ExchangeState:
    usual = {
        "vhost": "/",
        "exchange": "orders",
        "type": "x-consistent-hash",
        "state": "routed",
        "why": "",
        "destinations": 3,
        "age_seconds": 1.0,
        "stale": False,
        "restored": False,
        "ring": "5",
        "changed_at": None,
        "moved": 0.0,
        "rates": {},
        "late": {"confirmed": 1000},
        "dead_letters": [],
        "not_lanes": [],
        "without_copies": [],
    }
    return ExchangeState(**{**usual, **changes})


def group(**changes: Any) -> GroupState:
    usual = {
        "vhost": "/",
        "exchange": "orders",
        "members": 2,
        "here": 1,
        "shards": 3,
        "ready": 0,
        "unacked": 0,
        "publish_rate": 1.0,
        "consume_rate": 1.0,
        "seconds_to_empty": 0.0,
        "exact": True,
        "reasons": (),
        "membership": "",
        "moving": 0,
        "moving_seconds": 0.0,
        "moving_why": "",
        "waiting": [],
        "paused": 0,
        "refused": [],
        "refused_count": 0,
        "oldest_unacked_seconds": 0.0,
        "oldest_unacked_of": "",
        "oldest_unacked_shard": "",
        "worst": 0,
        "worst_shard": "",
        "keys_retried": 0,
        "keys_stopped": 0,
        "oldest_retried_seconds": 0.0,
        "standing": 0,
        "windows_blocked": 0,
        "late": {},
    }
    return GroupState(**{**usual, **changes})


def overview(**changes: Any) -> Overview:
    usual = {
        "at": 0.0,
        "checks": {},
        "disconnected": {},
        "blocked": {},
        "management": "",
        "faults": [],
        "absent": [],
        "own_rights": [],
        "rights": [],
        "refused_403": 0,
        "nowhere": {},
        "succeeded": 1000,
        "journal": "",
        "reloads": {},
        "certificates": {},
        "exchanges": [exchange()],
        "groups": [group()],
    }
    return Overview(**{**usual, **changes})


def of_exchange(**changes: Any) -> Overview:
    return overview(exchanges=[exchange(**changes)])


def of_group(**changes: Any) -> Overview:
    return overview(groups=[group(**changes)])


def right(user: str, resource: str = "exchange 'amq.default'") -> MissingRight:
    return MissingRight("shop", user, "write", resource, r"^amq\.default$")


DENIED = "ACCESS_REFUSED - {} access to {} '{}' in vhost 'shop' refused for user 'anna'"

CRITICAL, WARNING, NOTE = Severity

CASES: list[tuple[Overview, Severity, str, str]] = [
    (overview(disconnected={"/": "refuses connections"}), CRITICAL, "broker-disconnected", "refuses connections"),
    (overview(blocked={"/": "low on memory"}), CRITICAL, "broker-blocked", "low on memory"),
    (overview(checks={"broker's permissions": "403 no"}), CRITICAL, "a-permission-is-missing", "403 no"),
    (overview(checks={"one cluster": "another"}), CRITICAL, "lost-management-api", "another"),
    (overview(management="timed out"), WARNING, "lost-management-api", "timed out"),
    (overview(faults=[Fault("/", "x", "404")]), WARNING, "lost-management-api", "'x' in '/': 404"),
    (overview(checks={"look-ups": "404"}), WARNING, "lost-management-api", "404"),
    (overview(checks={"rings read": "not read yet: 'x'"}), WARNING, "lost-management-api", "not read yet: 'x'"),
    (overview(absent=[("/", "ordesr")]), WARNING, "named-exchange-absent", "'ordesr' in '/'"),
    (overview(refused_403=1), WARNING, "a-permission-is-missing", "1 channel closed"),
    (
        overview(own_rights=[right("ringproxy")], checks={"broker's permissions": "no"}),
        *(CRITICAL, "a-permission-is-missing", "set_permissions -p shop ringproxy CONFIGURE WRITE READ"),
    ),
    (
        overview(rights=[right("anna")], refused_403=7),
        *(
            WARNING,
            "a-permission-is-missing",
            r"Grant write on ^amq\.default$: rabbitmqctl set_permissions -p shop ",
        ),
    ),
    (
        of_group(refused=[("c1", "orders.1", f"403 {DENIED.format('read', 'queue', 'orders.1')}")], refused_count=1),
        *(WARNING, "consumer-refused", r"Grant read on ^orders(\.[0-9]+)?$: rabbitmqctl set_permissions -p shop anna"),
    ),
    (
        of_group(membership=DENIED.format("configure", "exchange", "orders.group")),
        *(
            WARNING,
            "group-disconnected",
            r"Grant configure on ^orders\.group(\..*)?$: rabbitmqctl",
        ),
    ),
    (overview(nowhere={"invalid": 5}, succeeded=0), CRITICAL, "all-publishes-fail", "none succeeded"),
    (overview(journal="no space"), WARNING, "journal-loses-records", "no space"),
    (overview(reloads={"tokens_file": "no TOML"}), WARNING, "a-reload-failed", "no TOML"),
    (overview(reloads={"config": "unknown setting"}), WARNING, "a-reload-failed", "unknown setting"),
    (overview(reloads={"oauth_token_url": "401"}), WARNING, "a-reload-failed", "401"),
    (overview(certificates={"tls_cert_file": 2.0}), WARNING, "a-certificate-ends", "ends in 2.0 days"),
    (overview(certificates={"tls_cert_file": -1.0}), WARNING, "a-certificate-ends", "has ended"),
    (
        of_exchange(state="not routed", why="dead_letter", dead_letters=[("orders.1", "policy 'dead'")]),
        *(CRITICAL, "not-routed", "'orders.1' (policy 'dead')"),
    ),
    (
        of_exchange(state="refused", why="a queue would dead-letter", dead_letters=[("orders.1", "policy 'dead'")]),
        *(CRITICAL, "not-routed", "'orders.1' (policy 'dead')"),
    ),
    (
        of_exchange(state="not routed", why="not_a_lane", not_lanes=[("lane.1", "two queues")]),
        *(CRITICAL, "not-routed", "'lane.1': two queues"),
    ),
    (of_exchange(state="not routed", why="overlap"), CRITICAL, "not-routed", "the exchange itself"),
    (of_exchange(without_copies=["orders.audit.1"]), CRITICAL, "queue-without-copies", "orders.audit.1"),
    (of_exchange(stale=True, age_seconds=400.0), WARNING, "stale-ring", "400 s ago"),
    (of_exchange(late={"nacked": 5}), CRITICAL, "all-publishes-fail", "5 nacked"),
    (of_exchange(late={"confirmed": 98, "nacked": 5}), CRITICAL, "publishes-fail", "98 confirmed, 5 nacked"),
    (of_exchange(late={"confirmed": 9, "nacked": 1}), NOTE, "publishes-fail", "9 confirmed, 1 nacked"),
    (of_exchange(late={"confirmed": 98, "unknown": 1}), WARNING, "unknown-outcomes", "1 message sent"),
    (of_group(waiting=["orders.1"]), CRITICAL, "shard-not-consumed", "orders.1"),
    (of_group(standing=1), CRITICAL, "shard-stands", "In 1 shard"),
    (
        of_group(refused=[("a", "orders.1", "403 no")], refused_count=2),
        WARNING,
        "consumer-refused",
        "403 no. And 1 more",
    ),
    (of_group(membership="ACCESS_REFUSED"), WARNING, "group-disconnected", "ACCESS_REFUSED"),
    (of_group(worst=21, worst_shard="orders.2"), WARNING, "poison-message", "21 times, of the shard orders.2"),
    (of_group(late={"crashes": 1}), WARNING, "crash-loop", "1 time with"),
    (
        of_group(oldest_unacked_seconds=31.0, oldest_unacked_of="10.0.0.7:5", oldest_unacked_shard="orders.1"),
        *(NOTE, "member-not-acking", "10.0.0.7:5 has held a message of orders.1 for 31 s"),
    ),
    (of_group(oldest_unacked_seconds=301.0), WARNING, "member-not-acking", "301 s"),
    (of_group(late={"stalled": 2}), WARNING, "member-not-acking", "2 shards"),
    (of_group(keys_stopped=1), WARNING, "key-blocked", "1 key stopped"),
    (of_group(keys_retried=3, oldest_retried_seconds=31.0), NOTE, "key-blocked", "3 keys"),
    (of_group(keys_retried=3, oldest_retried_seconds=901.0), WARNING, "key-blocked", "901 s"),
    (of_group(late={"dead_letters_failed": 1}), WARNING, "dead-letters-fail", "1 dead letter"),
    (of_group(late={"dead_letters": 1}), NOTE, "key-blocked", "1 message went"),
    (of_group(keys_stopped=1, oldest_unacked_seconds=400.0), WARNING, "key-blocked", "1 key stopped"),
    (of_group(windows_blocked=1), NOTE, "window-blocked", "Of 1 shard"),
    (
        of_group(moving=2, moving_seconds=31.0, moving_why="acks"),
        NOTE,
        "group-unbalanced",
        "2 shards, the first for 31 s",
    ),
    (of_group(moving=2, moving_seconds=601.0, moving_why="acks"), WARNING, "group-unbalanced", "601 s: acks"),
    (of_group(reasons=("no quorum queue",), exact=False), NOTE, "group-unbalanced", "no quorum queue."),
    (of_group(paused=1), NOTE, "group-unbalanced", "1 shard"),
]


@pytest.mark.parametrize(("of", "severity", "section", "text"), CASES)
def test_each_fault_is_found(of: Overview, severity: Severity, section: str, text: str) -> None:
    (found,) = findings(of)
    assert (found.severity, found.section) == (severity, section)
    assert text in found.text
    assert section in SECTIONS


def test_every_section_of_the_runbook_that_one_sidecar_can_tell_of_is_linked() -> None:
    assert {section for _, _, section, _ in CASES} == SECTIONS - FLEET_WIDE


def test_the_sections_are_those_of_the_alerts() -> None:
    rules = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"][0]["rules"]
    linked = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in rules if "alert" in rule}
    assert {section for _, _, section, _ in CASES} <= linked


@pytest.mark.parametrize(
    "of",
    [
        overview(),
        overview(exchanges=[], groups=[], succeeded=0),
        overview(nowhere={"invalid": 4}, succeeded=0),
        of_exchange(state="passed", why="pass"),
        of_exchange(state="shadowed", why="shadow"),
        of_exchange(late={"confirmed": 1000, "nacked": 10}),
        of_exchange(late={"nacked": 0}),
        of_group(oldest_unacked_seconds=NOTED_AFTER, keys_retried=2, moving=1, moving_seconds=5.0, worst=20),
    ],
)
def test_what_is_as_it_should_be_is_no_finding(of: Overview) -> None:
    assert findings(of) == []


def test_each_finding_is_known_by_its_subject_and_title() -> None:
    """The page keeps a finding's place, focus and scrolling by these."""
    wrong = {
        "state": "not routed", "why": "overlap", "without_copies": ["q"], "stale": True,
        "late": {"confirmed": 1, "nacked": 9, "unknown": 1},
    }  # fmt: skip
    troubled = {
        "waiting": ["q"], "refused": [("c", "q", "403")], "refused_count": 1, "worst": 99,
        "oldest_unacked_seconds": 999.0, "standing": 1, "windows_blocked": 1, "moving": 1, "moving_seconds": 99.0,
        "membership": "no", "reasons": ("no",), "paused": 1,
        "late": {"crashes": 1, "stalled": 1, "dead_letters_failed": 1, "dead_letters": 1},
    }  # fmt: skip
    of = overview(
        disconnected={"/": "no", "shop": "no"},
        blocked={"/": "no", "shop": "no"},
        checks={"one cluster": "no", "rings read": "no"},
        management="no",
        absent=[("/", "x")],
        own_rights=[right("anna"), right("anna", "exchange 'x'"), right("anna")._replace(vhost="/")],
        rights=[right("anna"), right("bob"), right("bob")._replace(right="read")],
        nowhere={"invalid": 5},
        succeeded=0,
        journal="no",
        reloads={"config": "no", "tokens_file": "no"},
        certificates={"tls_cert_file": 1.0, "client_ca_file": 1.0},
        exchanges=[exchange(vhost=vhost, exchange=name, **wrong) for vhost in ("/", "shop") for name in "ab"],
        groups=[group(vhost=vhost, exchange=name, **troubled) for vhost in ("/", "shop") for name in "ab"],
    )
    found = findings(of)
    assert len(found) > 80
    assert len({(each.kind, each.vhost, each.exchange, each.title) for each in found}) == len(found)


def test_a_missing_right_names_user_and_right_and_many_are_bounded() -> None:
    found = findings(overview(rights=[right("anna"), right("<b>bob</b>", "group 'orders'")], refused_403=9))
    assert [each.title for each in found] == [
        "User 'anna' lacks write on exchange 'amq.default' in 'shop'",
        "User '<b>bob</b>' lacks write on group 'orders' in 'shop'",
    ]
    many = [right(f"user {n}") for n in range(100)]
    assert len(findings(overview(rights=many, own_rights=many))) == 2 * MOST_RIGHTS


def test_the_worst_stands_first_and_the_sidecar_before_the_rest() -> None:
    found = findings(
        overview(
            management="timed out",
            exchanges=[exchange(exchange="b", stale=True), exchange(exchange="a", stale=True)],
            groups=[group(paused=1), group(exchange="other", waiting=["other.1"])],
        )
    )
    assert [(each.severity, each.kind, each.exchange) for each in found] == [
        (CRITICAL, "group", "other"),
        (WARNING, "", ""),
        (WARNING, "exchange", "a"),
        (WARNING, "exchange", "b"),
        (NOTE, "group", "orders"),
    ]
    assert isinstance(found[0], Finding)
