"""The verdict on a proposed ring, for machines: docs/pipeline.md has the fields."""

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.whatif.findings import Findings


@dataclass(frozen=True)
class Limits:
    """What a proposed ring may do; None for no limit."""

    max_moved: float | None
    """Share of the messages."""
    max_over_fair: float | None
    """The busiest destination's messages per weight over the mean per weight."""

    def passed(self, found: Findings) -> list[str]:
        """The limits that it is over."""
        told = {"max_moved": found.moved.of_messages, "max_over_fair": found.after.max_over_fair}
        limits = asdict(self)
        return [name for name, value in told.items() if limits[name] is not None and value > limits[name]]


def verdict(found: Findings, limits: Limits, *, sample: float, with_bytes: bool) -> dict[str, Any]:
    """As it stands in verdict.json; what is of bytes is null where the demand has none."""

    def of(share: Any) -> dict[str, Any]:
        told = asdict(share)
        return told if with_bytes else told | {"bytes": None, "of_bytes": None}

    passed = limits.passed(found)
    return {
        "v": 1,
        "verdict": "over" if passed else "within",
        "over": passed,
        "limits": asdict(limits),
        "present": found.present.fingerprint,
        "proposed": found.proposed.fingerprint,
        "sample": sample,
        "messages": found.messages,
        "bytes": found.bytes if with_bytes else None,
        "moved": of(found.moved),
        "native_moved": of(found.native),
        "max_over_fair": {
            "present": found.before.max_over_fair,
            "proposed": found.after.max_over_fair,
            "advised": found.advice.load.max_over_fair,
            "least": found.least_over_fair,
        },
        "weights_help": found.weights_help,
        "advised_weights": [[d.kind, d.name, weight] for d, weight in found.advice.known.weights.items()],
        "advised_moved": of(found.advised_moves),
    }
