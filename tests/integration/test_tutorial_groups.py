"""The tutorial on consumer groups, as a reader goes through it; which worker gets which shards may differ."""

import re
from pathlib import Path

from tests.integration.own_node import private_only
from tests.integration.reader import ENDED, Reader, Step, steps, told
from tests.integration.tutorials import beginner

pytestmark = private_only

PAGE = "docs/tutorial-groups.md"
CUSTOMERS = {f"customer-{number}" for number in range(1, 13)}
VARIES = {
    r"127\.0\.0\.1:\d+ \w+ by \S+, since \S+, \d+ unacked": "A WORKER",
    r"orders\.\d, orders\.\d$": "TWO SHARDS",
    r"member \d for [\d.]+ s, (\d+|\?) ready, (\d+|\?) unacked": "A MEMBER",
    r"^lag +(\d+|\?) ready, (\d+|\?) unacked, (\d+\.\d/s published, \d+\.\d/s consumed|rates not known)$": "A LAG",
    r"\nmoving .*": "",
    r"^(one|two|three):( customer-\d+)+$": r"\1: CUSTOMERS",
}
"""The texts that differ from one run to the next, and what stands for them.

RabbitMQ may not have counted a shard's messages yet. A move is in the report until the sidecar's next decision, also
when the shard has its new member already.
"""


def takes(reader: Reader, step: Step) -> str:
    """Return what a step's commands print, which must be alike to what the page shows."""
    reader.saves(step)
    printed = told(ENDED.sub("", f"{reader.does(step.commands)}\n"))
    assert alike(printed) == alike(told(step.shown)), f"{step.heading}: printed:\n{printed}\nand shown:\n{step.shown}"
    return printed


def alike(output: str) -> str:
    for pattern, name in VARIES.items():
        output = re.sub(pattern, name, output, flags=re.M)
    return output


def shares(printed: str) -> list[set[str]]:
    """Return the customers of each worker that a step lists."""
    return [set(line.split()[1:]) for line in printed.splitlines() if re.match(r"\w+: customer", line)]


def test_each_step_shows_what_the_tutorial_says(tmp_path: Path) -> None:
    install, *others = steps(PAGE)
    # The first tutorial's test runs these commands.
    assert install.commands == steps("docs/tutorial.md")[1].commands
    with beginner(tmp_path, "examples/tutorial-groups") as reader:
        listed = [share for step in others if (share := shares(takes(reader, step)))]

    # Both times each customer was one worker's, and none was left out.
    assert len(listed) == 2
    for one, other in listed:
        assert one | other == CUSTOMERS
        assert not one & other
