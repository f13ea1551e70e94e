"""Beats as JSON: what is sent comes back, and anything else is refused with the field's name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.beat import (
    AHEAD,
    MAX_BYTES,
    MAX_EVERY,
    MAX_LINKS,
    MAX_MEMBERS,
    MAX_NAME,
    MAX_PREFETCH,
    VERSION,
    Beat,
    BeatError,
    LinkBeat,
    MemberBeat,
    OtherVersionError,
    decode,
    encode,
)

NOW = 1.8e9
"""The time at which beats come, in seconds since 1970."""

LATEST = int(NOW) + AHEAD

NAMES = st.text(max_size=60)
LINKS = st.builds(
    LinkBeat,
    st.integers(0, LATEST),
    st.integers(0, LATEST),
    st.none() | st.floats(0, 1e6),
    st.integers(0, 10**9),
    st.integers(0, 2**63 - 1),
)
IDS = st.text(min_size=1, max_size=60)
MEMBERS = st.builds(
    MemberBeat,
    IDS,
    NAMES,
    st.floats(0, 1e10),
    st.booleans(),
    st.booleans(),
    st.integers(0, MAX_PREFETCH),
    st.dictionaries(IDS, LINKS, max_size=4),
)
BEATS = st.builds(
    Beat,
    IDS,
    NAMES,
    st.integers(0, 2**53),
    st.floats(0, MAX_EVERY),
    st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.id).map(tuple),
)


@given(BEATS)
def test_a_beat_comes_back_as_it_was_sent(beat: Beat) -> None:
    assert decode(encode(beat), NOW) == beat


def good(**changes: Any) -> dict[str, Any]:
    beat = Beat("sidecar", "host", 1, 1.0, (MemberBeat("m", "client", 5.0, links={"s": LinkBeat(1, 2, 0.5, 3)}),))
    return {**json.loads(encode(beat)), **changes}


def with_member(**changes: Any) -> dict[str, Any]:
    return good(members=[{**good()["members"][0], **changes}])


MEMBER = good()["members"][0]
FIELDS = st.sampled_from(["version", "members", "shards", "id", "every"])
TOO_MANY = {str(number): [0, 0, None, 0, 0, False, False] for number in range(MAX_LINKS // 2 + 1)}

MISTAKES: list[tuple[Any, str]] = [
    ([], "no object"),
    (good(version=1), "version"),
    (good(version=None), "version"),
    (good(sidecar=1), "sidecar"),
    (good(sidecar="ü" * MAX_NAME), "sidecar"),
    (good(host=None), "host"),
    (good(number=1.0), "number"),
    (good(number=True), "number"),
    (good(number=-1), "number"),
    (good(number=2**60), "number"),
    (good(every="1"), "every"),
    (good(every=float("nan")), "every"),
    (good(every=float("inf")), "every"),
    (good(every=-1), "every"),
    (good(every=MAX_EVERY + 1), "every"),
    (good(members={}), "members"),
    (good(members=[1]), "members"),
    (good(members=2 * good()["members"]), "members"),
    (good(members=[{}] * (MAX_MEMBERS + 1)), "members"),
    (with_member(id=None), "id"),
    (with_member(client=5), "client"),
    (with_member(since="now"), "since"),
    (with_member(stalled=1), "stalled"),
    (with_member(leaving=None), "leaving"),
    (with_member(prefetch=None), "prefetch"),
    (with_member(prefetch=MAX_PREFETCH + 1), "prefetch"),
    (with_member(shards=[]), "shards"),
    (with_member(shards={"s": {}}), "shards"),
    (with_member(shards={"s": [1, 2, 3]}), "shards"),
    (with_member(shards={"s" * (MAX_NAME + 1): [1, 1, None, 0, 0, False, False]}), "shards"),
    (with_member(shards={"s": [-1, 1, None, 0, 0, False, False]}), "claim"),
    (with_member(shards={"s": [1, LATEST + 1, None, 0, 0, False, False]}), "epoch"),
    (with_member(shards={"s": [LATEST + 1, 1, None, 0, 0, False, False]}), "claim"),
    (with_member(shards={"\ud800": [1, 1, None, 0, 0, False, False]}), "shards"),
    (with_member(shards={"": [1, 1, None, 0, 0, False, False]}), "shards"),
    (with_member(id=""), "id"),
    (good(sidecar=""), "sidecar"),
    (with_member(shards={"s": [1, 1, "x", 0, 0, False, False]}), "delivered"),
    (with_member(shards={"s": [1, 1, None, None, 0, False, False]}), "unacked"),
    (with_member(shards={"s": [1, 1, None, 0, 0]}), "list of 7"),
    (with_member(shards={"s": [1, 1, None, 0, 0, 0, False]}), "probe"),
    (with_member(shards={"s": [1, 1, None, 0, 0, False, 1]}), "hands over"),
    (with_member(shards={"s": [1, 1, None, 0, -1, False, False]}), "priority"),
    (with_member(shards={"s": [1, 1, None, 0, 2**63, False, False]}), "priority"),
    (good(members=[{**MEMBER, "id": str(n), "shards": TOO_MANY} for n in range(2)]), "members"),
]


@pytest.mark.parametrize(("body", "named"), MISTAKES)
def test_a_mistake_is_named(body: Any, named: str) -> None:
    with pytest.raises(BeatError, match=named):
        decode(json.dumps(body).encode(), NOW)


def test_a_beat_of_another_release_names_its_sender() -> None:
    with pytest.raises(OtherVersionError) as raised:
        decode(json.dumps(good(version=VERSION + 1, members="else")).encode(), NOW)
    assert (raised.value.sidecar, raised.value.version) == ("sidecar", VERSION + 1)


@pytest.mark.parametrize(
    ("members", "is_last"),
    [
        ((), True),
        ((MemberBeat("m", "", 0.0, is_leaving=True),), True),
        ((MemberBeat("m", "", 0.0, is_leaving=True, links={"s": LinkBeat(0, 0, None, 1)}),), False),
        ((MemberBeat("m", "", 0.0),), False),
    ],
)
def test_a_beat_is_the_last_one_if_nobody_is_there_and_nobody_holds_messages(
    members: tuple[MemberBeat, ...], is_last: bool
) -> None:
    assert Beat("s", "h", 1, 1.0, members).is_last is is_last


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_BYTES + 1), b'"\\ud800"'])
def test_what_is_no_json_or_too_long_is_refused(body: bytes) -> None:
    with pytest.raises(BeatError):
        decode(body, NOW)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(FIELDS, x),
    )
)
def test_no_json_raises_anything_else(body: Any) -> None:
    with pytest.raises(BeatError):
        decode(json.dumps(body).encode(), NOW)


def test_of_too_much_the_first_is_told() -> None:
    links = {str(number): LinkBeat(1, 1, None, 0) for number in range(MAX_LINKS - 1)}
    members = tuple(MemberBeat(str(number), "x" * 999, 0.0, links=links) for number in range(2))
    beat = decode(encode(Beat("s", "h", 1, 1.0, members)), NOW)
    assert [len(member.links) for member in beat.members] == [MAX_LINKS - 1, 1]
    assert beat.members[0].client == "x" * MAX_NAME
    many = tuple(MemberBeat(str(number), "", 0.0) for number in range(MAX_MEMBERS + 1))
    assert len(decode(encode(Beat("s", "h", 1, 1.0, many)), NOW).members) == MAX_MEMBERS
