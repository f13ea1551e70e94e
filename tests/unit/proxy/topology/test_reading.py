"""One reading of an exchange: what it asks, and what is believed of it."""

import asyncio

import pytest
from aiohttp import web

from proxy.topology.bindings import CONSISTENT_HASH, Binding, Exchange, TopologyError
from proxy.topology.management import Management, ManagementError
from proxy.topology.reading import ABSENT, Reading, VhostNotListedError, read_exchange_and_bindings
from ring.destination import Destination
from tests.unit.proxy.fake_management import FakeManagement, Fault, binding, body, status, truncated

X = ("/", "x")
A = Destination("queue", "a")
OF_X = "/api/exchanges/%2F/x"
BINDINGS_OF_X = f"{OF_X}/bindings/source"


async def test_a_plain_reading_is_two_requests(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a", "3"))
    assert await read_exchange_and_bindings(api, X) == Reading(Exchange(CONSISTENT_HASH), (Binding(A, "3"),))
    assert fake.requests == [OF_X, BINDINGS_OF_X]


async def test_an_exchange_of_another_type_is_one(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a", "3"), type="fanout")
    assert await read_exchange_and_bindings(api, X) == Reading(Exchange("fanout"))
    assert fake.requests == [OF_X]


@pytest.mark.parametrize(
    ("name", "kind", "of", "balances"),
    [
        ("x.group", "fanout", "x-consistent-hash", "x"),
        ("x.group", "fanout", "x-modulus-hash", "x"),
        ("x.group", "fanout", "topic", ""),
        ("x.group", "fanout", None, ""),
        ("x.group", "topic", "x-consistent-hash", ""),
        ("x.group", "direct", "x-consistent-hash", ""),
        ("x.group.asked", "direct", "x-consistent-hash", "x"),
        ("x.group.asked", "fanout", "x-consistent-hash", ""),
        ("x.asked", "direct", "x-consistent-hash", ""),
        ("x.groups", "fanout", "x-consistent-hash", ""),
        (".group", "fanout", "x-consistent-hash", ""),
    ],
)
async def test_the_exchange_by_which_sidecars_balance_a_group_is_known(
    fake: FakeManagement, api: Management, name: str, kind: str, of: str | None, balances: str
) -> None:
    fake.exchange(name, type=kind)
    if of is not None:
        fake.exchange("x", type=of)
    assert await read_exchange_and_bindings(api, ("/", name)) == Reading(Exchange(kind, balances=balances))
    may_be = (name, kind) in (("x.group", "fanout"), ("x.group.asked", "direct"))
    assert len(fake.requests) == (2 if may_be else 1)


async def test_an_absent_exchange_is_believed_where_virtual_host_and_list_agree(
    fake: FakeManagement, api: Management
) -> None:
    fake.exchange("other")
    assert await read_exchange_and_bindings(api, X) == ABSENT
    assert sorted(fake.requests) == ["/api/exchanges/%2F", OF_X, "/api/vhosts"]


@pytest.mark.parametrize("gone", [True, False])
async def test_nothing_is_absent_in_a_virtual_host_that_is_not_listed(
    fake: FakeManagement, api: Management, gone: bool
) -> None:
    fake.exchange("x")
    if gone:
        fake.delete("x")
    fake.vhosts.clear()
    with pytest.raises(VhostNotListedError, match="virtual host '/'"):
        await read_exchange_and_bindings(api, X)


async def test_nor_where_the_list_of_virtual_hosts_has_it_and_its_exchanges_are_404(
    fake: FakeManagement, api: Management
) -> None:
    fake.exchange("x")
    fake.fail(status(404), "/api/exchanges/")
    with pytest.raises(VhostNotListedError):
        await read_exchange_and_bindings(api, X)


@pytest.mark.parametrize("where", ["/api/vhosts", "/api/exchanges/%2F"])
@pytest.mark.parametrize("fault", [status(500), status(401), truncated(b"[]"), body({}), body(b"")])
async def test_nor_where_a_second_source_does_not_answer(
    fake: FakeManagement, api: Management, where: str, fault: Fault
) -> None:
    fake.fail(fault, where)
    with pytest.raises((ManagementError, TopologyError)):
        await read_exchange_and_bindings(api, X)


async def test_nor_where_the_list_has_it_and_its_own_page_is_404(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x")
    fake.fail(status(404), OF_X)
    with pytest.raises(ManagementError, match="is listed"):
        await read_exchange_and_bindings(api, X)


async def test_no_bindings_are_believed_once_a_second_reading_agrees(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x")
    assert await read_exchange_and_bindings(api, X) == Reading(Exchange(CONSISTENT_HASH))
    assert fake.counted() == {OF_X: 1, BINDINGS_OF_X: 2, "/api/exchanges/%2F": 1, "/api/vhosts": 1}


async def test_an_empty_list_that_lies_once_is_not_believed(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a"))

    async def lie_once(_: web.Request) -> web.StreamResponse:
        fake.mend()
        return web.json_response([])

    fake.fail(lie_once, BINDINGS_OF_X)
    assert (await read_exchange_and_bindings(api, X)).bindings == (Binding(A, "1"),)


async def test_an_exchange_that_goes_between_two_requests_is_absent(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a"))

    async def go(_: web.Request) -> web.StreamResponse:
        fake.mend()
        fake.delete("x")
        return web.json_response([])

    fake.fail(go, BINDINGS_OF_X)
    assert await read_exchange_and_bindings(api, X) == ABSENT


async def test_bindings_without_a_weight_are_kept_for_the_report(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a", "abc"))
    assert await read_exchange_and_bindings(api, X) == Reading(Exchange(CONSISTENT_HASH), (Binding(A, "abc"),))
    # They show that the answer is no empty one.
    assert fake.requests == [OF_X, BINDINGS_OF_X]


async def test_an_unbelievable_list_is_an_error(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x", binding("a"), {**binding("b"), "destination_type": "stream"})
    with pytest.raises(TopologyError):
        await read_exchange_and_bindings(api, X)


async def test_the_second_reading_of_no_bindings_comes_after_a_pause(fake: FakeManagement, api: Management) -> None:
    fake.exchange("x")
    loop, asked = asyncio.get_running_loop(), 0.0

    async def first(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked = loop.time()
        fake.mend()
        fake.exchange("x", binding("a", "3"))
        return web.json_response([])

    fake.fail(first, BINDINGS_OF_X)
    assert (await read_exchange_and_bindings(api, X, 0.3)).bindings == (Binding(A, "3"),)
    assert loop.time() - asked >= 0.3
    assert fake.counted()[BINDINGS_OF_X] == 2
