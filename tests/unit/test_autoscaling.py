"""The examples for autoscaling, over a day: the manifests' own rule, and a group whose copies come and go by it."""

import itertools
import random
from collections.abc import Mapping
from math import pi, sin
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.autoscaler import Autoscaler

DEPLOY = Path(__file__).parents[2] / "deploy"
DAY, STEP = 86_400, 15
"""Seconds; a step is the time between two questions."""
SHARDS, MOST = 48, 12
SPEED = 50.0
"""Messages a second that a copy works off."""


class Example(NamedTuple):
    """One of the two examples, as far as the rule goes."""

    behavior: Mapping[str, Any]
    rate: float
    lag: float
    most: int
    late: int
    """Seconds that its figures are old."""


def document(file: str, kind: str) -> dict[str, Any]:
    (found,) = (each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each["kind"] == kind)
    return dict(found)["spec"]  # type: ignore[no-any-return]


def keda() -> Example:
    spec = document("scaledobject.yaml", "ScaledObject")
    by_field = {each["metadata"]["valueLocation"]: float(each["metadata"]["targetValue"]) for each in spec["triggers"]}
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return Example(behavior, by_field["lag.publish_rate"], by_field["lag.messages"], spec["maxReplicaCount"], 10)


def adapter() -> Example:
    spec = document("hpa.yaml", "HorizontalPodAutoscaler")
    named = {each["external"]["metric"]["name"]: each["external"]["target"]["averageValue"] for each in spec["metrics"]}
    rate, lag = (float(named[f"ringproxy_group_{what}"]) for what in ("publish_rate", "messages"))
    return Example(spec["behavior"], rate, lag, spec["maxReplicas"], 60)


class Outcome(NamedTuple):
    """A day that is over."""

    steps: list[int]
    """By how many the copies became more, or fewer, each time."""
    most_waiting: float

    @property
    def turns(self) -> int:
        """How often it went up after it had gone down, or down after up."""
        return sum((before > 0) != (after > 0) for before, after in itertools.pairwise(self.steps))


def coming_in(second: int) -> float:
    """Messages a second: little at night, and two peaks by day that the most copies can work off."""
    by_day = sin(pi * second / DAY) ** 2 * (0.85 + 0.15 * sin(6 * pi * second / DAY))
    return SPEED * MOST * 0.8 * (0.03 + 0.97 * by_day)


def day(example: Example, targets: Mapping[str, float], shards: int, starts_in: int) -> Outcome:
    """Play a day. A copy takes `starts_in` seconds until it works, its shards' moves included; one that goes, too."""
    autoscaler = Autoscaler(example.behavior, 1, example.most, targets)
    chance = random.Random(shards)
    waiting, copies, working = [0.0] * shards, 1, 1
    coming: list[tuple[int, int]] = []
    figures: list[tuple[float, float]] = []
    steps: list[int] = []
    most = 0.0
    for second in range(0, DAY, STEP):
        while coming and coming[0][0] <= second:
            working = coming.pop(0)[1]
        rate = coming_in(second) * chance.uniform(0.85, 1.15)
        waiting = [each + rate * STEP / shards for each in waiting]
        for copy in range(working):
            work_off(waiting, range(copy, shards, working), SPEED * STEP)
        most = max(most, sum(waiting))
        figures.append((rate, sum(waiting)))
        old = -(-example.late // STEP)
        told = dict(zip(("rate", "lag"), figures[-1 - min(old, len(figures) - 1)], strict=True))
        wanted = autoscaler.decide(second, copies, {name: told[name] for name in targets})
        if wanted != copies:
            steps.append(wanted - copies)
            copies = wanted
            coming.append((second + starts_in, wanted))
    return Outcome(steps, most)


def work_off(waiting: list[float], own: range, speed: float) -> None:
    """Take from a copy's own shards what it works off in a step, evenly."""
    total = sum(waiting[shard] for shard in own)
    left = max(0.0, 1 - speed / total) if total else 0.0
    for shard in own:
        waiting[shard] *= left


@pytest.mark.parametrize("example", [keda(), adapter()], ids=["keda", "adapter"])
@pytest.mark.parametrize("starts_in", [15, 60])
def test_copies_come_in_the_morning_and_go_in_the_evening(example: Example, starts_in: int) -> None:
    """All of them come before the first one goes, and what waits at most is a matter of seconds."""
    assert (example.rate, example.most) == (0.8 * SPEED, MOST)
    outcome = day(example, {"rate": example.rate, "lag": example.lag}, SHARDS, starts_in)
    assert sum(step for step in outcome.steps if step > 0) >= MOST / 2
    assert outcome.turns == 1
    assert outcome.most_waiting < 5 * SPEED * MOST


@pytest.mark.parametrize("example", [keda(), adapter()], ids=["keda", "adapter"])
def test_by_the_lag_alone_copies_would_come_and_go_all_day(example: Example) -> None:
    assert day(example, {"lag": example.lag}, SHARDS, 30).turns > 50


def test_few_shards_for_many_copies_are_not_loaded_evenly() -> None:
    """With as many shards as copies, ten of twelve work off no more than six."""
    example = keda()
    targets = {"rate": example.rate, "lag": example.lag}
    few, many = (day(example, targets, shards, 30) for shards in (MOST, SHARDS))
    assert few.most_waiting > 5 * many.most_waiting


RULE: dict[str, Any] = {
    "scaleUp": {"stabilizationWindowSeconds": 45, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]},
    "scaleDown": {"stabilizationWindowSeconds": 300, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
}


def scaled(values: list[float | None], begin: int = 1) -> list[int]:
    """Return the copies after each value, one every 15 s, of a rule with a target of 10."""
    autoscaler, copies, told = Autoscaler(RULE, 1, 8, {"lag": 10}), begin, []
    for number, value in enumerate(values):
        copies = autoscaler.decide(15.0 * number, copies, {"lag": value})
        told.append(copies)
    return told


def test_the_rule_waits_before_copies_come_and_longer_before_they_go() -> None:
    assert scaled([10.0, *[40.0] * 4], 1)[:4] == [1, 1, 1, 2]
    assert scaled([10.0, *[80.0] * 16])[-1] == 8
    assert scaled([40.0, *[5.0] * 20], 4)[19:] == [4, 3]


def test_the_rule_leaves_a_tenth_alone_and_loses_nothing_without_figures() -> None:
    assert scaled([43.0] * 30, 4) == [4] * 30
    assert scaled([None] * 30, 4) == [4] * 30
