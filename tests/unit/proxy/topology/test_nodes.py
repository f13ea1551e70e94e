"""In which order the management API's URLs are asked."""

from yarl import URL

from proxy.topology.nodes import PASSED_OVER, Nodes
from tests.unit.proxy.topology.scheduling import Clock


def test_the_node_that_answers_comes_first_and_one_that_did_not_last() -> None:
    clock = Clock()
    nodes = Nodes([URL("http://me:hush@a:1/below"), URL("http://b:2"), URL("http://[::1]:3")], clock.monotonic)
    a, b, c = nodes.all
    assert [str(node) for node in nodes.in_turn()] == ["a:1", "b:2", "::1:3"]
    assert (str(a.base), nodes.is_other(b)) == ("http://a:1/below", False)
    nodes.answered(b)
    assert (nodes.in_turn(), nodes.current, nodes.is_other(a)) == ([b, a, c], b, True)
    nodes.failed(b)
    assert nodes.in_turn() == [a, c, b]
    nodes.failed(a)
    nodes.failed(c)
    # All have failed: as if none had.
    assert nodes.in_turn() == [b, a, c]
    clock.now += PASSED_OVER / 2
    nodes.failed(a)
    clock.now += PASSED_OVER / 2 + 1
    assert nodes.in_turn() == [b, c, a]


def test_a_late_answer_of_a_node_that_was_passed_over_does_not_make_it_the_current_one() -> None:
    nodes = Nodes([URL("http://a:1"), URL("http://b:2")])
    a, b = nodes.all
    nodes.answered(a)
    nodes.failed(a)
    nodes.switch(b)
    nodes.answered(a)
    assert (nodes.current, nodes.switches, nodes.in_turn()) == (b, 1, [b, a])
