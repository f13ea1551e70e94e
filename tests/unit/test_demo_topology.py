"""The rights that the demo finds in the output of a plan."""

from typing import Any

import pytest

from proxy.shards.document import parse
from proxy.shards.plan import make_plan
from testbed.demo.topology import may_write_directly
from tests.unit.proxy.shards.model import EMPTY


@pytest.mark.parametrize("lanes", [True, False])
def test_a_right_to_the_default_exchange_is_found(lanes: bool) -> None:
    fields: dict[str, Any] = {"name": "orders", "shards": 2, "lanes": lanes}
    writer, *_ = make_plan(parse({"exchange": [fields]}), {"/": EMPTY}).rights

    assert may_write_directly(writer) is not lanes
