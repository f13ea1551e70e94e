"""`ring-proxy group`: asks a running sidecar for a group: its lag, who has which shard, and what is about to move."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.process.logs import escaped

REDRAW: Final = 1.0
"""Seconds between two pictures of `--watch`."""

_CLEAR: Final = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to the upper left, and clears the screen."""


class View(NamedTuple):
    """One part of what a sidecar tells of a group."""

    path: str
    """The end of the path on the admin listener."""
    lines: Callable[[Mapping[str, Any]], Iterator[str]]
    """A function that yields the lines for people of an answer.

    It raises KeyError, TypeError or ValueError for an answer that is none.
    """


def show(sidecar: str, vhost: str | None, exchange: str, view: View, *, as_json: bool) -> str:
    """Return what a sidecar tells of a group, in lines for people or as JSON. Raises QuestionError.

    `vhost` None stands for the sidecar's default one.
    """
    if vhost is None:
        vhost = str(rings(sidecar)["default_vhost"])
    answer = ask(sidecar, f"/groups/{quote(vhost, safe='')}/{quote(exchange, safe='')}{view.path}")
    if as_json:
        return json.dumps(answer, indent=2)
    try:
        # Names are the choice of whoever connects and declares, and must not steer the terminal of who asks.
        return "\n".join(map(escaped, view.lines(answer)))
    except (KeyError, TypeError, ValueError) as error:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({error!r}); {WHICH}") from None


def watch(sidecar: str, vhost: str | None, exchange: str, view: View, *, as_json: bool) -> None:
    """Print what a sidecar tells of a group again and again, until Ctrl-C; a fault is printed in its place.

    In a terminal each picture replaces the one before. The first fault raises QuestionError, since it is most often a
    mistake in an argument.
    """
    text = show(sidecar, vhost, exchange, view, as_json=as_json)
    while True:
        print(f"{_CLEAR}{text}" if sys.stdout.isatty() else text, flush=True)
        time.sleep(REDRAW)
        try:
            text = show(sidecar, vhost, exchange, view, as_json=as_json)
        except QuestionError as error:
            text = escaped(str(error))


def lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for people of an answer about a group's members, shards and moves."""
    members, shards = answer["members"], answer["shards"]
    titles = {member["id"]: f"member {number}" for number, member in enumerate(members, 1)}
    exact = {True: "exact", False: "not exact", None: "not known to be exact"}[answer["exact"]]
    counts = f"{number(members, 'member')}, {number(shards, 'shard')}"
    if not answer["joined"]:
        counts = f"{number(shards, 'shard')}, no member at this sidecar"
    yield f"group        {answer['exchange']} in virtual host {answer['vhost']}, {counts}, {exact}"
    yield f"lag          {_lag(answer['lag'])}"
    for reason in answer["reasons"]:
        yield f"not exact    {reason}"
    for warning in answer["warnings"]:
        yield f"warning      {warning}"
    if answer["joined"] and answer["membership"]:
        yield f"not balanced {answer['membership']}"
    for member in members:
        held = ", ".join(member["shards"]) or "none"
        stalled = ", in series" if member["in_series"] else ""
        stalled += ", gets no shard as it did not ack" if member["stalled"] else ""
        who = f"{member['client'] or member['id']} by {member['host']}, since {member['since']}"
        yield f"{titles[member['id']]:<12} {who}, {member['unacked']} unacked{stalled}"
        yield f"             has {number(member['shards'], 'shard')}, and should have {member['wanted']}: {held}"
    for left in answer["leaving"]:
        yield f"leaving      {left['client']} has cancelled, with {left['unacked']} unacked of {left['shard']}"
    for refused in answer["refused"]:
        who = f"{refused['client']} has no consumer on {refused['shard']} for {seconds(refused['since_seconds'])}"
        yield f"refused      {who}: {refused['why']}"
    for shard in shards:
        # Without a member here, nothing but the broker tells who consumes.
        holder = titles.get(shard["holder"], "nobody") if answer["joined"] else _consumers(shard["consumers"])
        since = f" for {seconds(shard['holder_since_seconds'])}" if shard["holder_since_seconds"] is not None else ""
        figures = _messages(shard)
        kept = "; a consumer that is no member holds the unacked ones" if shard["unacked"] else ""
        waiting = f", and no member gets them{kept}" if shard["waiting"] else ""
        more = f"{waiting}{_again(shard)}{_paused(shard)}"
        yield f"shard        {shard['shard']}, {holder}{since}, {figures}{more}"
    for move in answer["moves"]:
        ends = [
            titles.get(move[end], "a member that has left") if move[end] is not None else "nobody"
            for end in ("from", "to")
        ]
        way = " to ".join(ends)
        yield f"moving       {move['shard']}, from {way}, for {seconds(move['since_seconds'])}: {move['why']}"


MEMBERS_VIEW: Final = View("", lines)
"""The group's members, shards and moves."""


def _lag(lag: Mapping[str, Any]) -> str:
    """Return the messages of all shards, how fast they come and go, and where some wait, for how long some will."""
    published, consumed, empty_in = lag["publish_rate"], lag["consume_rate"], lag["seconds_to_empty"]
    if published is None or consumed is None:
        return f"{_messages(lag)}, rates not known"
    figures = f"{_messages(lag)}, {published:.1f}/s published, {consumed:.1f}/s consumed"
    if not lag["ready"]:
        return figures
    return f"{figures}, {'not getting empty' if empty_in is None else f'empty in {seconds(empty_in)}'}"


def _messages(lag: Mapping[str, Any]) -> str:
    return f"{_count(lag['ready'])} ready, {_count(lag['unacked'])} unacked"


def _consumers(count: int | None) -> str:
    return "? consumers" if count is None else f"{count} consumer{'' if count == 1 else 's'}"


def _again(shard: Mapping[str, Any]) -> str:
    """Return what a shard's line says of redeliveries; empty if there were none, or an older sidecar does not say."""
    count, worst = shard.get("redelivered", 0), shard.get("worst", 0)
    if not count:
        return ""
    return f", {count} redelivered" + (f", one message {worst} times in the last minutes" if worst > 1 else "")


def _paused(shard: Mapping[str, Any]) -> str:
    """Return what a shard's line says of its pause; empty if there is none, or an older sidecar does not say."""
    pause = shard.get("paused")
    return f", paused by {pause['by']} since {pause['since']}" if pause is not None else ""


def seconds(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def number(things: list[Any], name: str) -> str:
    """Return how many things there are, with their name."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)
