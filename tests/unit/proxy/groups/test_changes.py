"""The line that says how a group has changed."""

from proxy.groups.changes import SHOWN, Changes


def test_joins_leaves_and_moves_are_one_line_and_told_once() -> None:
    changes = Changes()
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
    changes = Changes()
    many = {f"id {n}": f"member {n}" for n in range(1000)}
    told = changes.news(many, {f"q.{n}": "id 0" for n in range(1000)})
    assert told.startswith("joined: member 0, member 1, ")
    assert told.count("and 990 more") == 2
    told = changes.news(many, {f"q.{n}": f"id {n}" for n in range(1000)})
    assert told.count(" has ") == SHOWN
    assert told.endswith("; and 989 more")
