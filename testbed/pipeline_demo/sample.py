"""One and the same traffic in two journals, a whole one and a sample of 1%; what the jobs say of both must agree."""

import random
from collections.abc import Sequence
from pathlib import Path

from ring.hashing import SLOTS, slot_of
from testbed.pipeline_demo.agreement import hottest, of_skew, of_usage, of_whatif
from testbed.pipeline_demo.jobs import Jobs, verdict_of
from testbed.pipeline_demo.running import Runner

EXCHANGE = "payments"
WEIGHTS = {"payments.1": 1, "payments.2": 1, "payments.3": 1, "payments.4": 1}

SAMPLE = 0.01
"""The share of the slots that the second sidecar journals."""

MESSAGES = 30_000
"""Through each of the two sidecars."""

_OTHERS = 20_000
"""Keys beside the hot one; some 12,000 of them are used, so that about 120 are in the sample."""

_HOT_SHARE = 0.3
"""The share of the messages that the hot key has: more than the fair share of any of the four queues."""


def hot_key() -> str:
    """Return the first account whose slot is in the sample: a hot key outside would not be seen."""
    return next(name for n in range(_OTHERS) if slot_of((name := f"account-{n}").encode()) < SAMPLE * SLOTS)


def payments() -> Sequence[str]:
    """Return the key of each message; the same every time."""
    chance, hot = random.Random(1), hot_key()
    return [
        hot if chance.random() < _HOT_SHARE else f"account-{int(_OTHERS * chance.random() ** 1.5)}"
        for _ in range(MESSAGES)
    ]


def settings(folder: Path) -> dict[str, str]:
    """Return the settings of the sidecar that journals the sample."""
    return {"journal-dir": str(folder / "sample"), "journal-sample": str(SAMPLE)}


async def run(jobs: Jobs, by: Runner, folder: Path, vhost: str) -> None:
    """Run the jobs on the sample, and `whatif` on the whole journal, too."""
    journal = ("--journal", str(folder / "sample"))
    edit = ("--vhost", vhost, "--exchange", EXCHANGE, "--add", "queue:payments.5=1", "--max-moved", "0.5")
    verdict = verdict_of(await jobs.run(by, "whatif", "--journal", str(folder / "journal"), *edit))
    jobs.expect("whatif", "verdict", verdict["verdict"], "within")
    jobs.expect("whatif", "messages move", 0 < verdict["moved"]["of_messages"] < 0.5, True)
    await jobs.run(by, "whatif", *journal, *edit, name="whatif-sample")
    await jobs.run(by, "usage", *journal, "--window", "60", name="usage-sample")
    await jobs.run(by, "skew", *journal, "--fail-on", "none", name="skew-sample")


def compared(jobs: Jobs, folder: Path, whole: Path) -> None:
    """Note as a fault each figure of the whole journal that is in no interval of the sample's.

    `whole` is the folder in which `usage` and `skew` have written of the whole journal.
    """
    figures = [
        *of_usage(whole / "usage", folder / "usage-sample", EXCHANGE),
        *of_skew(whole / "skew", folder / "skew-sample", EXCHANGE),
        *of_whatif(folder / "whatif", folder / "whatif-sample"),
    ]
    print(f"The payments in the whole journal, and by the sample of {SAMPLE:.0%}:")
    for figure in figures:
        print(f"  {figure}")
        jobs.expect("sample", f"{figure.what} is within its interval: {figure}", figure.agrees, True)
    hot = hottest(folder / "skew-sample", EXCHANGE)
    jobs.expect("sample", "hottest key", hot["key"], hot_key().encode())
    # The sample's interval of its share may have the fair share within it, and then the page says "maybe".
    may = hot["unfixable"] or hot["maybe_unfixable"]
    jobs.expect("sample", "no weight can fix the hottest key, or maybe none can", may, True)
