"""`ring-proxy diff`: compares the rings of two running sidecars."""

from collections.abc import Mapping
from typing import Any

from proxy.commands.asking import WHICH, QuestionError, rings
from proxy.process.logs import escaped
from proxy.topology.names import natural
from ring.destination import Destination
from ring.ring import Ring


def diff(one: str, other: str) -> tuple[str, bool]:
    """Return how the rings of two sidecars differ, in lines for people, and whether they differ at all.

    Raises QuestionError, also if the two have read no exchange in common.
    """
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


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference of two sidecars' answers about one exchange; empty if they agree."""
    lines = [
        f"{field}: {mine.get(field)} / {theirs.get(field)}"
        for field in ("type", "mode", "passed", "refused", "hashed")
        if mine.get(field) != theirs.get(field)
    ]
    shares = [answer.get("route_share") for answer in (mine, theirs)]
    if shares[0] != shares[1] and None not in shares:
        lines.append(f"route_share: {shares[0]:g} / {shares[1]:g}")
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
