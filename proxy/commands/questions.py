"""Sidecars' answers about rings, in lines for people: where one key goes, how two sidecars differ."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from proxy.commands.asking import WHICH, QuestionError, ask, rings
from proxy.process.logs import escaped
from proxy.topology.changes import PASSED_BECAUSE
from proxy.topology.names import natural
from ring.destination import Destination
from ring.ring import Ring


def explain(sidecar: str, vhost: str | None, exchange: str, key: str) -> str:
    """Return where a key goes and why, in lines for people; `vhost` None stands for the sidecar's default one."""
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


def diff(one: str, other: str) -> tuple[str, bool]:
    """Return how the rings of two sidecars differ, in lines for people, and whether they differ at all."""
    answers = [_by_name(url) for url in (one, other)]
    if not answers[0].keys() & answers[1].keys():
        raise QuestionError(
            f"nothing to compare: {one} and {other} have read no exchange in common; a sidecar reads an exchange "
            "at the first publish to it, or at its start if route names it"
        )
    lines: list[str] = []
    differ = False
    for name in sorted(answers[0].keys() | answers[1].keys()):
        mine, theirs = answers[0].get(name), answers[1].get(name)
        title = f"{name[1]} in {name[0]}"
        if mine is None or theirs is None:
            # Not a disagreement: a sidecar reads only the exchanges that were asked for.
            lines.append(f"  {title}: not compared, read by {other if mine is None else one} only")
            continue
        found = _differences(mine, theirs)
        differ = differ or bool(found)
        lines.append(f"{'!' if found else '='} {title}: {_ring(mine)} / {_ring(theirs)}")
        lines += [f"    {line}" for line in found]
    lines.append("the sidecars differ" if differ else "the sidecars agree")
    return "\n".join(map(escaped, lines)), differ


def _ring(answer: Mapping[str, Any]) -> str:
    return f"ring {answer['ring']}" if "ring" in answer else "no ring"


def _explanation(answer: Mapping[str, Any], vhost: str, exchange: str, key: str) -> list[str]:
    lines = [f"exchange     {exchange} in virtual host {vhost}, {answer['type']}, mode {answer['mode']}"]
    place = answer.get("key")
    if answer.get("refused"):
        lines.append(f"refused      publishes are refused: {answer['refused']}")
    if answer["passed"]:
        lines.append(f"passed       publishes go to the exchange itself: {_passed_because(answer['passed'])}")
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
    for binding in answer["ignored_bindings"]:
        key, why = binding["key"], binding["reason"]
        lines.append(f"ignored      binding to {_title(binding['destination'])} with the key {key!r}: {why}")
    for lane in answer.get("not_lanes", ()):
        lines.append(f"not a lane   exchange {lane['name']}: {lane['reason']}")
    for change in answer["changes"]:
        moved = f"{change['moved']:.2%} of the slots moved"
        lines.append(f"change       {change['at']} {change['what']} ({change['why']}), {moved}")
    return lines


def _passed_because(reason: str) -> str:
    """Return a reason to pass with its meaning; a sidecar of another release may have a reason of its own."""
    meanings = {str(known): meaning for known, meaning in PASSED_BECAUSE.items()}
    return f"{meanings[reason]} ({reason})" if reason in meanings else reason


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{field}: {mine.get(field)} / {theirs.get(field)}"
        for field in ("type", "mode", "passed", "refused", "hashed")
        if mine.get(field) != theirs.get(field)
    ]
    upstreams = [answer.get("upstream") or {} for answer in (mine, theirs)]
    for field, what in (("rings", "leads to rings"), ("bindings", "number of bindings"), ("conflict", "conflict")):
        if upstreams[0].get(field) != upstreams[1].get(field):
            lines.append(f"{what}: {upstreams[0].get(field)} / {upstreams[1].get(field)}")
    weights = [_weights(answer) for answer in (mine, theirs)]
    for destination in sorted(weights[0].keys() | weights[1].keys(), key=lambda one: natural(one.name)):
        a, b = (w.get(destination) for w in weights)
        if a != b:
            lines.append(f"{destination}: {_weight(a)} / {_weight(b)}")
    if weights[0] != weights[1] and all(weights):
        moved = Ring.build(weights[0]).moved_from(Ring.build(weights[1]))
        lines.append(f"{moved:.2%} of the slots have different owners")
    elif mine.get("ring") != theirs.get("ring") and not lines:
        lines.append("only the fingerprints differ: the sidecars have different ring formats")
    return lines


def _weight(weight: int | None) -> str:
    return "not on the ring" if weight is None else f"weight {weight}"


def _weights(answer: Mapping[str, Any]) -> dict[Destination, int]:
    return {Destination(d["type"], d["name"]): d["weight"] for d in answer.get("destinations", [])}


def _by_name(sidecar: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    try:
        return {(e["vhost"], e["exchange"]): e for e in rings(sidecar)["exchanges"]}
    except (KeyError, TypeError) as error:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({error!r}); {WHICH}") from None


def _title(destination: Mapping[str, str]) -> str:
    return f"{destination['type']} {destination['name']}"
