"""`ring-proxy explain`: asks a running sidecar where a key of an exchange goes, and why."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.process.logs import escaped
from proxy.topology.changes import PASSED_BECAUSE
from proxy.topology.names import natural, some
from proxy.topology.table import PassReason

_SHARDS = 8
"""The most shards, or lanes, that one line names."""


def explain(sidecar: str, vhost: str | None, exchange: str, key: str) -> str:
    """Return where a key goes and why, in lines for people; `vhost` None stands for the sidecar's default one.

    Raises QuestionError.
    """
    if vhost is None:
        vhost = str(rings(sidecar)["default_vhost"])
    path = (
        f"/rings/{quote(vhost, safe='')}/{quote(exchange, safe='')}?key={quote(key, safe='', errors='surrogateescape')}"
    )
    answer = ask(sidecar, path)
    try:
        # Names are the choice of whoever declares queues, and must not steer the terminal of who asks.
        return "\n".join(map(escaped, _explanation(answer, vhost, exchange, key)))
    except (KeyError, TypeError) as error:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({error!r}); {WHICH}") from None


def _explanation(answer: Mapping[str, Any], vhost: str, exchange: str, key: str) -> list[str]:
    """Return the lines that `ring-proxy explain` prints for a sidecar's answer about one exchange and key."""
    lines = [f"exchange     {exchange} in virtual host {vhost}, {answer['type']}, mode {answer['mode']}"]
    place = answer.get("key")
    lines += _ways(answer, place)
    if place:
        lines += [
            f"key          {key}",
            f"slot         {place['slot']}",
            f"owner        {_title(place['owner'])}",
            f"runner-up    {_title(place['runner_up']) if place['runner_up'] else 'none'}",
            f"ring         {answer['ring']}, hashes {answer['hashed']}, read {answer['age_seconds']:.1f} s ago",
        ]
        for destination in sorted(answer["destinations"], key=lambda one: natural(one["name"])):
            weight, share = destination["weight"], destination["share"]
            lane = f", through lane {destination['lane']}" if "lane" in destination else ""
            lines.append(f"destination  {_title(destination)}, weight {weight}, {share:.2%} of the slots{lane}")
    if upstream := answer.get("upstream"):
        if "ring_of_key" in upstream:
            ring = upstream["ring_of_key"]
            lines.append(f"key          {key}")
            lines.append(f"leads to     ring of exchange {ring}" if ring else "leads to     no ring: it is passed")
        else:
            lines += [f"leads to     ring of exchange {ring}" for ring in upstream["rings"]]
        lines += [f"conflict     {upstream['conflict']}"] if upstream["conflict"] else []
    lines += _generations(answer)
    for binding in answer["ignored_bindings"]:
        key, why = binding["key"], binding["reason"]
        lines.append(f"ignored      binding to {_title(binding['destination'])} with the key {key!r}: {why}")
    for lane in answer.get("not_lanes", ()):
        lines.append(f"not a lane   exchange {lane['name']}: {lane['reason']}")
    for change in answer["changes"]:
        moved = f"{change['moved']:.2%} of the slots moved"
        lines.append(f"change       {change['at']} {change['what']} ({change['why']}), {moved}")
    return lines


def _generations(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines on the generations of an exchange's shards; none if it has only the first."""
    others = answer.get("other_generations", ())
    number = answer.get("generation", 1)
    if number == 1 and not others:
        return []
    lines = [f"generation   {number} is the ring{_made_with(answer)}"]
    if under_way := answer.get("change"):
        lines.append(f"under way    it {change(under_way)}")
    for group, shards in answer.get("not_open", {}).items():
        lines.append(f"not open     to group {group}: {some(shards, _SHARDS)}")
    for other in others:
        queues = ", ".join(f"{len(each)} queues of group {group}" for group, each in other["queues"].items())
        told = f"generation   {other['generation']} is bound{_made_with(other)}: {other['bound']} bindings"
        lines.append(told + (f", {queues}" if queues else ""))
        if lanes := other["no_lanes"]:
            lines.append(
                f"no lanes     of generation {other['generation']}, so it is not the ring: {some(lanes, _SHARDS)}"
            )
    return lines


def change(of: Mapping[str, int]) -> str:
    """Return how far the change of an exchange's generation is, in words."""
    way = f"changes from generation {of['from']} to {of['to']}"
    if of["lanes_bound"] < of["lanes"]:
        return f"{way}: {of['lanes_bound']} of {of['lanes']} lanes are bound"
    if not of["old_shards"]:
        return f"{way}: {of['old_shards_left']} old shards are left to drain"
    return f"{way}: {of['old_shards'] - of['old_shards_left']} of {of['old_shards']} old shards are drained"


def _made_with(generation: Mapping[str, Any]) -> str:
    return f", made with {generation['made_with']} shards" if generation.get("made_with") else ""


def _ways(answer: Mapping[str, Any], place: Mapping[str, Any] | None) -> list[str]:
    """Return the lines that say whether publishes, or those with the key at `place`, follow the ring."""
    lines = []
    if answer.get("refused"):
        lines.append(f"refused      publishes are refused: {answer['refused']}")
    if answer["passed"]:
        lines.append(f"passed       publishes go to the exchange itself: {_passed_because(answer['passed'])}")
    if (share := answer.get("route_share", 100)) < 100:
        lines.append(f"route_share  {share:g}% of the slots follow the ring")
    if place and place.get("passed") == PassReason.SHARE:
        lines.append(f"passed       publishes with the key go to the exchange itself: {_passed_because('share')}")
    return lines


def _title(destination: Mapping[str, str]) -> str:
    return f"{destination['type']} {destination['name']}"


def _passed_because(reason: str) -> str:
    """Return a reason to pass with its meaning; a sidecar of another release may have a reason of its own."""
    meanings = {str(known): meaning for known, meaning in PASSED_BECAUSE.items()}
    return f"{meanings[reason]} ({reason})" if reason in meanings else reason
