"""Which sidecars there are, which of them can be asked, and whether they agree."""

from typing import Any

import pytest
from aiohttp import web

from proxy.shards import fleet
from proxy.shards.fleet import FleetError, Inventory, Sidecar, admin_url, ask, connected, disagreement, reachable
from tests.unit.proxy.shards.fake_api import Pages, management, served

WHOAMI = {"name": "topology", "tags": ["monitoring"]}
RINGS = "/rings///orders"


def connection(host: str, **properties: str) -> dict[str, Any]:
    return {"peer_host": host, "client_properties": properties}


def pages(*connections: Any) -> Pages:
    return {"whoami": WHOAMI, "connections": list(connections)}


async def test_the_inventory_is_of_the_connections_that_sidecars_made_and_of_the_jobs_of_a_virtual_host() -> None:
    made = [
        connection("10.0.0.6", ringproxy_version="0.2.0", ringproxy_id="a"),
        connection("10.0.0.6", ringproxy_version="0.2.0", ringproxy_id="b"),
        connection("10.0.0.5", ringproxy_job_version="0.2.0") | {"vhost": "/"},
        connection("10.0.0.4", ringproxy_job_version="0.2.0") | {"vhost": "other"},
        connection("10.0.0.6", ringproxy_version="0.2.0", ringproxy_id="a", connection_name="x"),
        connection("10.0.0.8", product="pika"),
        {"peer_host": "10.0.0.9", "client_properties": []},
        {},
    ]
    async with management(pages(*made)) as api:
        assert await connected(api, "/") == Inventory(
            frozenset({Sidecar("10.0.0.6", "a"), Sidecar("10.0.0.6", "b")}),
            frozenset({"10.0.0.5"}),
        )


@pytest.mark.parametrize("tags", [["management"], "management,policymaker", None])
async def test_who_sees_only_his_own_connections_knows_no_fleet(tags: Any) -> None:
    async with management({"whoami": {"name": "u", "tags": tags}, "connections": []}) as api:
        with pytest.raises(FleetError, match="needs the tag monitoring"):
            await connected(api, "/")


async def test_tags_may_be_a_text_with_commas() -> None:
    async with management({"whoami": {"name": "u", "tags": "management,administrator"}, "connections": []}) as api:
        assert await connected(api, "/") == Inventory(frozenset(), frozenset())


def test_a_host_is_asked_at_the_default_port() -> None:
    assert admin_url("10.0.0.7") == "http://10.0.0.7:15681"
    assert admin_url("fd00::7") == "http://[fd00::7]:15681"


def sidecar(process: str, ring: str = "abc", status: int = 200) -> web.Response:
    """The answer of a sidecar that has an id: of its ring, or that it does not see the exchange."""
    found = {"passed": None, "ring": ring} if status == 200 else {"type": "urn:ringproxy:problem:unknown-exchange"}
    return web.json_response(found, status=status, headers={"Ringproxy-Id": process})


def of_id(host: str, process: str) -> dict[str, Any]:
    return connection(host, ringproxy_version="1", ringproxy_id=process)


async def test_every_sidecar_of_a_host_must_answer_and_is_known_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several may be behind one address, or have admin listeners of other ports."""
    async with (
        served({RINGS: lambda: sidecar("a")}) as one,
        served({RINGS: lambda: sidecar("b", status=404)}) as two,
        management(pages(of_id("10.0.0.7", "a"), of_id("10.0.0.7", "a"), of_id("10.0.0.7", "b"))) as api,
    ):
        monkeypatch.setattr(fleet, "admin_url", lambda host: one)
        for named in ([], [one], ["http://127.0.0.1:9"]):
            with pytest.raises(FleetError) as told:
                await reachable(api, named, "/", "orders")
            assert str(told.value).startswith(
                "1 sidecars of the cluster cannot be asked: sidecar b at 10.0.0.7; asked were "
            )
            assert f"{one} (sidecar a)" in str(told.value)
            assert "name the admin listener of each of them: --sidecar URL" in str(told.value)
            assert await disagreement(api, named, "/", "orders", "abc") == str(told.value)
        assert await reachable(api, [two], "/", "orders") == [two, one]
        assert await disagreement(api, [two], "/", "orders", "abc") == ""
        assert await disagreement(api, [two], "/", "orders", "new") == f"{one} (ring abc)"


async def test_the_id_tells_whether_a_loopback_address_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served({RINGS: lambda: sidecar("a")}) as url:
        monkeypatch.setattr(fleet, "admin_url", lambda host: url)
        async with management(pages(of_id("127.0.0.1", "a"))) as api:
            assert await reachable(api, [], "/", "orders") == [url]
        async with management(pages(of_id("127.0.0.1", "b"))) as api:
            with pytest.raises(FleetError, match=r"sidecar b at 127\.0\.0\.1; asked were .* \(sidecar a\)"):
                await reachable(api, [], "/", "orders")


async def test_a_job_that_publishes_has_to_end_first() -> None:
    """It has read the ring once, before the batch, and has no admin listener."""
    job = connection("10.0.0.9", ringproxy_job_version="1") | {"vhost": "/"}
    async with management(pages(job)) as api:
        with pytest.raises(FleetError, match=r"a pipeline's job publishes a batch .* from 10\.0\.0\.9: wait until"):
            await reachable(api, [], "/", "orders")
        assert "wait until it has ended" in await disagreement(api, [], "/", "orders", "abc")
        assert await reachable(api, [], "other", "orders") == []


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (lambda: web.Response(body=b" " * 200_001), "longer than 200000 bytes"),
        (lambda: web.Response(body=b"[" * 100_000), "recursion"),
        (lambda: web.Response(body=b"\xff"), "JSON is malformed"),
        (lambda: web.Response(body=b"[" + b"{}," * 60_000 + b"{}]"), "more than 100000 values"),
    ],
)
async def test_a_listener_of_another_host_does_not_decide_how_much_is_read(
    monkeypatch: pytest.MonkeyPatch, page: Any, fault: str
) -> None:
    monkeypatch.setattr(fleet, "MAX_ANSWER", 200_000)
    monkeypatch.setattr(fleet, "MAX_VALUES", 100_000)
    async with served({RINGS: page}) as url:
        (answer,) = await ask([url], "/", "orders")

    assert answer.ring is None
    assert fault in answer.fault


@pytest.mark.parametrize(
    ("page", "ring", "fault"),
    [
        ({"passed": None, "ring": "abc"}, "abc", ""),
        ({"passed": "mode pass", "ring": "abc"}, None, ""),
        ({"other": 1}, None, "not a sidecar's answer"),
        ([], None, "not a sidecar's answer"),
        (None, None, "answers 404, so no admin listener of a sidecar is there"),
        (web.json_response({"type": "urn:ringproxy:problem:unknown-exchange"}, status=404), None, ""),
        (
            web.json_response({"type": "urn:ringproxy:problem:not-found"}, status=404),
            None,
            "answers 404, so no admin listener of a sidecar is there",
        ),
        (web.Response(status=503), None, "answers 503"),
    ],
)
async def test_what_a_sidecar_answers(page: Any, ring: str | None, fault: str) -> None:
    async with served({RINGS: page}) as url:
        (answer,) = await ask([url], "/", "orders")

    assert (answer.sidecar, answer.ring, answer.fault) == (url, ring, fault)


async def test_who_routes_by_another_ring_disagrees_and_who_routes_by_none_agrees() -> None:
    async with (
        management(pages()) as api,
        served({RINGS: {"passed": None, "ring": "new"}}) as new,
        served({RINGS: {"passed": None, "ring": "old"}}) as old,
        served({RINGS: {"passed": "mode pass"}}) as native,
    ):
        assert await disagreement(api, [new, native], "/", "orders", "new") == ""
        assert await disagreement(api, [new, old], "/", "orders", "new") == f"{old} (ring old)"
        assert "http://127.0.0.1:9 (" in await disagreement(api, ["http://127.0.0.1:9"], "/", "orders", "new")
