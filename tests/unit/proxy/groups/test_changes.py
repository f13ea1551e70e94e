"""The line that says how a group has changed."""

from collections.abc import Mapping

from proxy.groups.beats import MemberBeat
from proxy.groups.changes import SHOWN, news
from proxy.groups.decide import Decision


class Told:
    """The lines that the log tells of one decision after another."""

    def __init__(self) -> None:
        self._last = Decision()

    def news(self, names: Mapping[str, str], owners: Mapping[str, str]) -> str:
        before = self._last
        self._last = Decision({each: MemberBeat(each, name, 0.0) for each, name in names.items()}, owners)
        return news(before, self._last)


def test_joins_leaves_and_moves_are_one_line_and_told_once() -> None:
    changes = Told()
    names = {"1": "a", "2": "b"}
    assert changes.news({}, {}) == ""
    assert changes.news({"1": "a"}, {}) == "joined: a"
    assert changes.news({"1": "a"}, {"q.10": "1", "q.9": "1"}) == "a has q.9, q.10"
    assert changes.news({"1": "a"}, {"q.10": "1", "q.9": "1"}) == ""
    assert changes.news(names, {"q.10": "2", "q.9": "1"}) == "joined: b; b has q.10"
    assert changes.news({"1": "a"}, {"q.10": "2", "q.9": "1"}) == "left: b"
    assert changes.news({"1": "a"}, {"q.9": "1"}) == "nobody has q.10"
    assert changes.news({"1": "a"}, {"q.9": "2"}) == "a member that has left has q.9"
    assert changes.news({}, {}) == "left: a; nobody has q.9"


def test_the_line_does_not_grow_with_the_group() -> None:
    changes = Told()
    many = {f"id {n}": f"member {n}" for n in range(1000)}
    told = changes.news(many, {f"q.{n}": "id 0" for n in range(1000)})
    assert told.startswith("joined: member 0, member 1, ")
    assert told.count("and 990 more") == 2
    told = changes.news(many, {f"q.{n}": f"id {n}" for n in range(1000)})
    assert told.count(" has ") == SHOWN
    assert told.endswith("; and 989 more")


def test_a_member_without_a_name_shows_its_id_and_one_that_is_leaving_has_left() -> None:
    before = Decision({"1": MemberBeat("1", "", 0.0)})
    assert news(Decision(), before) == "joined: 1"
    assert news(before, Decision({"1": MemberBeat("1", "", 0.0, is_leaving=True)})) == "left: 1"
