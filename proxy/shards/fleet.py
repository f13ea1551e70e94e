"""Find the sidecars of a cluster, and ask them by which ring they route an exchange.

Each connection of a sidecar tells the broker so in its client properties, so the broker's list of connections is the
inventory of the fleet. A sidecar is asked at its admin listener: at the host that it connects from, with the default
port, or at a URL that the operator names.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from proxy.settings.config import Settings, is_loopback
from proxy.topology.bindings import TopologyError
from proxy.topology.management import Management, ManagementError

MARK = "ringproxy_version"
"""The client property that every connection of a sidecar has."""

_UNKNOWN_EXCHANGE = "urn:ringproxy:problem:unknown-exchange"
"""The problem type of a sidecar's 404 for an exchange that does not exist to it; a wrong URL has another 404."""

SEES_ALL = frozenset({"monitoring", "administrator"})
"""The tags of users to whom the management API lists every user's connections."""

_TIMEOUT = 5.0
"""Seconds that a sidecar has to answer."""


class FleetError(Exception):
    """The fleet cannot be known, or does not agree; the message says why and what to do."""


@dataclass(frozen=True)
class Answer:
    """One sidecar's answer to the question which ring it routes an exchange by."""

    sidecar: str
    """The URL that was asked."""
    ring: str | None
    """The fingerprint of its ring; None if it routes the exchange by no ring."""
    fault: str = ""
    """Why there is no usable answer; empty if there is one."""


async def hosts(api: Management) -> frozenset[str]:
    """Return the hosts from which sidecars are connected to the cluster.

    Raises FleetError if the management user may not see the connections of other users.
    """
    answer = await api.page(["whoami"], ["name", "tags"])
    tags = answer.get("tags") if isinstance(answer, dict) else None
    # RabbitMQ has a list of tags, and before 3.9 had a text with commas.
    known = set(tags.split(",")) if isinstance(tags, str) else set(tags) if isinstance(tags, list) else set()
    if not known & SEES_ALL:
        raise FleetError(
            "the user in management_url needs the tag monitoring, to see in the broker's connections which sidecars "
            "there are: rabbitmqctl set_user_tags USER monitoring"
        )
    found = await api.page(["connections"], ["peer_host", "client_properties"])
    if not isinstance(found, list):
        raise TopologyError(f"connections: {str(found)[:60]!r} is not a list")
    return frozenset(host for item in found if (host := _host_of_sidecar(item)) is not None)


def _host_of_sidecar(item: Any) -> str | None:
    """Return the host of a connection, if a sidecar made it; else None."""
    if not isinstance(item, dict) or not isinstance(properties := item.get("client_properties"), dict):
        return None
    host = item.get("peer_host")
    return host if MARK in properties and isinstance(host, str) else None


def admin_url(host: str) -> str:
    """Return the URL of a host's admin listener, with the default port."""
    port = Settings.admin_listen.port
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def ask(urls: Sequence[str], vhost: str, exchange: str) -> list[Answer]:
    """Ask sidecars for their ring of an exchange, all at the same time."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        return list(await asyncio.gather(*(_ask(session, url, vhost, exchange) for url in urls)))


async def _ask(session: aiohttp.ClientSession, sidecar: str, vhost: str, exchange: str) -> Answer:
    path = f"/rings/{quote(vhost, safe='')}/{quote(exchange, safe='')}"
    try:
        async with session.get(URL(sidecar.rstrip("/") + path, encoded=True), allow_redirects=False) as response:
            if response.status not in (200, 404):
                return Answer(sidecar, None, f"answers {response.status}")
            told = await response.json(content_type=None)
            if response.status == 404 and isinstance(told, Mapping) and told.get("type") == _UNKNOWN_EXCHANGE:
                # It has looked for the exchange: its user does not see the virtual host, or it is of another cluster.
                return Answer(sidecar, None)
            if response.status == 404:
                return Answer(sidecar, None, "answers 404, so no admin listener of a sidecar is there")
    except TimeoutError:
        return Answer(sidecar, None, f"no answer within {_TIMEOUT:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(sidecar, None, " ".join(str(error).split()) or type(error).__name__)
    if not isinstance(told, Mapping) or "passed" not in told:
        return Answer(sidecar, None, "not a sidecar's answer")
    return Answer(sidecar, None if told["passed"] else told.get("ring"))


async def reachable(api: Management, named: Sequence[str], vhost: str, exchange: str) -> list[str]:
    """Return the URLs of the whole fleet: those that were named, and those of the hosts that answer.

    A host that does not answer must be one of those that were named, so there may be no more such hosts than names of
    other hosts. A loopback address counts as such a host: it may be one of another machine, as of a node of the broker.
    Raises FleetError if there are more.
    """
    found = await hosts(api)
    local = sorted(filter(is_loopback, found))
    answers = await ask([admin_url(host) for host in sorted(found.difference(local))], vhost, exchange)
    answers += [Answer(admin_url(host), None, "a loopback address, maybe of another machine") for host in local]
    mute = [answer for answer in answers if answer.fault]
    answering = [answer.sidecar for answer in answers if not answer.fault]
    others = _hosts_named(named, found) - {_host_of(url) for url in answering}
    if len(mute) > len(others):
        told = ", ".join(f"{answer.sidecar} ({answer.fault})" for answer in mute)
        raise FleetError(
            f"{len(mute)} of {len(answers)} hosts with sidecars cannot be asked, and {len(others)} others were named: "
            f"{told}; name the admin listener of each sidecar there: --sidecar URL"
        )
    return list(dict.fromkeys([*named, *answering]))


def _hosts_named(urls: Sequence[str], found: Collection[str]) -> set[str]:
    """Return what these URLs may stand for: hosts of the inventory, and each other URL, as of a tunnel, for itself."""
    hosts_named = set()
    for url in urls:
        host = _host_of(url)
        is_host = host in found and not is_loopback(host)
        hosts_named.add(host if is_host else url.rstrip("/").lower())
    return hosts_named


def _host_of(url: str) -> str:
    """Return the host of a URL; empty if it has none."""
    try:
        return URL(url).host or ""
    except ValueError:
        return ""


async def disagreement(api: Management, named: Sequence[str], vhost: str, exchange: str, wanted: str) -> str:
    """Return which sidecars do not route an exchange by the wanted ring yet; empty if all do.

    A sidecar that routes by no ring, as in mode pass, agrees: it publishes to the exchange itself. So does one to which
    the exchange does not exist.
    """
    try:
        urls = await reachable(api, named, vhost, exchange)
    except (FleetError, ManagementError, TopologyError) as error:
        return str(error)
    answers = await ask(urls, vhost, exchange)
    behind = [
        f"{answer.sidecar} ({answer.fault or f'ring {answer.ring}'})"
        for answer in answers
        if answer.fault or answer.ring not in (None, wanted)
    ]
    return ", ".join(behind)
