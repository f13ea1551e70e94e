"""Find the sidecars of a cluster, and ask them by which ring they route an exchange.

Each connection of a sidecar tells the broker so in its client properties, so the broker's list of connections is the
inventory of the fleet. A sidecar is asked at its admin listener: at the host that it connects from, with the default
port, or at a URL that the operator names. It has an id, which it tells the broker and whoever asks it: so it is known
which of several sidecars behind one address has answered.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from proxy.process.identity import ID_HEADER, JOB, SIDECAR_ID
from proxy.settings.config import Settings
from proxy.settings.http_client import limited, session
from proxy.topology.answers import MAX_VALUES, TopologyError, decode_whole
from proxy.topology.management import Management, ManagementError
from proxy.topology.users import sees_all_connections

_UNKNOWN_EXCHANGE = "urn:ringproxy:problem:unknown-exchange"
"""The problem type of a sidecar's 404 for an exchange that does not exist to it; a wrong URL has another 404."""

_TIMEOUT = 5.0
"""Seconds that a sidecar has to answer."""

_CONNECTIONS = 100
"""The most sidecars that are asked at the same time."""

MAX_ANSWER = 16 * 1024 * 1024
"""The most bytes of one answer. The answer on a ring with 10,000 lanes, each name of 255 letters, has some 6 MB."""


class FleetError(Exception):
    """The fleet cannot be known, or does not agree; the message says why and what to do."""


class Sidecar(NamedTuple):
    """A sidecar, as the broker's list of connections has it."""

    host: str
    """The host that it connects from."""
    id: str
    """The id of its process."""


@dataclass(frozen=True)
class Inventory:
    """The publishers of ringproxy that are connected to the cluster."""

    sidecars: frozenset[Sidecar]
    jobs: frozenset[str]
    """The hosts of a pipeline's jobs that publish in the virtual host that was asked for."""


@dataclass(frozen=True)
class Answer:
    """One sidecar's answer to the question which ring it routes an exchange by."""

    sidecar: str
    """The URL that was asked."""
    ring: str | None
    """The fingerprint of its ring; None if it routes the exchange by no ring."""
    fault: str = ""
    """Why there is no usable answer; empty if there is one."""
    id: str = ""
    """The id of the process that has answered; empty if there is no usable answer, or if it has none."""
    unsettled: int | None = None
    """How many of its publishes went by an earlier ring and are not settled; None if it does not tell."""
    unconfirmed: int | None = None
    """How many of its channels publish to the exchange without confirms; None if it does not tell."""


async def connected(api: Management, vhost: str) -> Inventory:
    """Return the sidecars that are connected to the cluster, and the jobs that publish in a virtual host.

    Raises FleetError if the management user may not see the connections of other users, and ManagementError or
    TopologyError if they cannot be read.
    """
    if not await sees_all_connections(api):
        raise FleetError(
            "the user in management_url needs the tag monitoring, to see in the broker's connections which sidecars "
            "there are: rabbitmqctl set_user_tags USER monitoring"
        )
    found = await api.page(["connections"], ["peer_host", "vhost", "client_properties"])
    if not isinstance(found, list):
        raise TopologyError(f"connections: {str(found)[:60]!r} is not a list")
    sidecars, jobs = set[Sidecar](), set[str]()
    for item in found:
        host, properties = _host_and_properties(item)
        if isinstance(process := properties.get(SIDECAR_ID), str):
            sidecars.add(Sidecar(host, process))
        elif JOB in properties and item.get("vhost") == vhost:
            jobs.add(host)
    return Inventory(frozenset(sidecars), frozenset(jobs))


def _host_and_properties(item: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the host of a connection, and what its client says of itself; both empty for what is no connection."""
    properties = item.get("client_properties") if isinstance(item, dict) else None
    host = item.get("peer_host") if isinstance(item, dict) else None
    return (host, properties) if isinstance(host, str) and isinstance(properties, dict) else ("", {})


def admin_url(host: str) -> str:
    """Return the URL of a host's admin listener, with the default port."""
    port = Settings.admin_listen.port
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def ask(urls: Sequence[str], vhost: str, exchange: str) -> list[Answer]:
    """Ask sidecars for their ring of an exchange, all at the same time."""
    async with session(_TIMEOUT, _CONNECTIONS) as client:
        return list(await asyncio.gather(*(_ask(client, url, vhost, exchange) for url in urls)))


async def _ask(client: aiohttp.ClientSession, sidecar: str, vhost: str, exchange: str) -> Answer:
    path = f"/rings/{quote(vhost, safe='')}/{quote(exchange, safe='')}"
    try:
        async with client.get(URL(sidecar.rstrip("/") + path, encoded=True), allow_redirects=False) as response:
            if response.status not in (200, 404):
                return Answer(sidecar, None, f"answers {response.status}")
            told = decode_whole(await limited(response, MAX_ANSWER), MAX_VALUES)
            process = response.headers.get(ID_HEADER, "")
            if response.status == 404 and isinstance(told, Mapping) and told.get("type") == _UNKNOWN_EXCHANGE:
                # It has looked for the exchange: its user does not see the virtual host, or it is of another cluster.
                return Answer(sidecar, None, "", process)
            if response.status == 404:
                return Answer(sidecar, None, "answers 404, so no admin listener of a sidecar is there")
    except TimeoutError:
        return Answer(sidecar, None, f"no answer within {_TIMEOUT:g} s")
    except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        return Answer(sidecar, None, " ".join(str(error).split()) or type(error).__name__)
    if not isinstance(told, Mapping) or "passed" not in told:
        return Answer(sidecar, None, "not a sidecar's answer")
    before, unconfirmed = (_number(told.get(name)) for name in ("unsettled_before", "unconfirmed"))
    return Answer(sidecar, None if told["passed"] else told.get("ring"), "", process, before, unconfirmed)


def _number(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


async def ask_all(api: Management, named: Sequence[str], vhost: str, exchange: str) -> list[Answer]:
    """Return the answer of each sidecar of the fleet: at the URLs that were named, and at the hosts that answer.

    Raises FleetError if a sidecar that is connected to the cluster has not been asked, or while a job publishes.
    """
    found = await connected(api, vhost)
    if found.jobs:
        raise FleetError(
            f"a pipeline's job publishes a batch in virtual host {vhost!r} by the ring that it read before, from "
            f"{', '.join(sorted(found.jobs))}: wait until it has ended"
        )
    # A loopback address may be of another machine, as of a node of the broker: the id in the answer tells.
    urls = dict.fromkeys([*named, *map(admin_url, sorted({sidecar.host for sidecar in found.sidecars}))])
    answers = await ask(list(urls), vhost, exchange)
    _check(found.sidecars, answers)
    return [answer for answer in answers if answer.sidecar in named or not answer.fault]


def _check(sidecars: Iterable[Sidecar], answers: Sequence[Answer]) -> None:
    """Raise FleetError unless each sidecar has answered."""
    answered = {answer.id for answer in answers if not answer.fault}
    if not (missing := sorted(each for each in sidecars if each.id not in answered)):
        return
    told = ", ".join(f"sidecar {each.id} at {each.host}" for each in missing)
    asked = ", ".join(f"{answer.sidecar} ({answer.fault or _who(answer)})" for answer in answers)
    raise FleetError(
        f"{len(missing)} sidecars of the cluster cannot be asked: {told}; asked were {asked}; name the admin listener "
        "of each of them: --sidecar URL"
    )


def _who(answer: Answer) -> str:
    return f"sidecar {answer.id}" if answer.id else "it does not say which sidecar it is"


async def reachable(api: Management, named: Sequence[str], vhost: str, exchange: str) -> list[str]:
    """Return the URLs of the whole fleet, as `ask_all` asks it. Raises FleetError."""
    return [answer.sidecar for answer in await ask_all(api, named, vhost, exchange)]


async def disagreement(api: Management, named: Sequence[str], vhost: str, exchange: str, wanted: str) -> str:
    """Return which sidecars do not route an exchange by the wanted ring yet, or why nobody knows; empty if all do.

    A sidecar that routes by no ring, as in mode pass, agrees: it publishes to the exchange itself. A sidecar to which
    the exchange does not exist agrees too.
    """
    try:
        answers = await ask_all(api, named, vhost, exchange)
    except (FleetError, ManagementError, TopologyError) as error:
        return str(error)
    behind = [
        f"{answer.sidecar} ({answer.fault or f'ring {answer.ring}'})"
        for answer in answers
        if answer.fault or answer.ring not in (None, wanted)
    ]
    return ", ".join(behind)


async def unsettled(
    api: Management, named: Sequence[str], vhost: str, exchange: str, wanted: str, *, unconfirmed: bool = False
) -> str:
    """Return which sidecars do not route by the wanted ring, or have publishes by an earlier one that are not settled.

    The text is empty if none is so. A sidecar whose clients publish without confirms does not know what is settled, so
    it is named unless `unconfirmed` says that it does not matter. Raises FleetError, ManagementError or TopologyError.
    """
    answers = await ask_all(api, named, vhost, exchange)
    found = unfit(answers, unconfirmed=unconfirmed)
    for answer in answers:
        if answer.unsettled:
            found.append(f"{answer.sidecar} ({answer.unsettled} publishes by an earlier ring are not settled)")
        elif answer.ring is not None and answer.ring != wanted:
            found.append(f"{answer.sidecar} (ring {answer.ring})")
    return ", ".join(found)


def unfit(answers: Iterable[Answer], *, unconfirmed: bool) -> list[str]:
    """Return the sidecars of which nobody can know what is settled, each with the reason.

    One to which the exchange does not exist, or that passes what comes to the exchange itself, has nothing to settle.
    """
    found = []
    for answer in answers:
        if answer.fault:
            found.append(f"{answer.sidecar} ({answer.fault})")
        elif answer.ring is not None and answer.unsettled is None:
            found.append(f"{answer.sidecar} (does not tell what is unsettled: of an older release, or it cannot count)")
        elif answer.unconfirmed and not unconfirmed:
            found.append(f"{answer.sidecar} ({answer.unconfirmed} channels publish without confirms)")
    return found
