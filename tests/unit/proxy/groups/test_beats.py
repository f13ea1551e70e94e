"""Beats as JSON: what is sent comes back, and anything else is refused with the field's name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.beats import (
    MAX_BYTES,
    MAX_LINKS,
    MAX_MEMBERS,
    MAX_NAME,
    MAX_PREFETCH,
    MAX_SHARDS,
    VERSION,
    Beat,
    BeatError,
    LinkBeat,
    MemberBeat,
    OtherVersionError,
    cut,
    decode,
    digest,
    encode,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
LINKS = st.builds(LinkBeat, st.integers(1, 3), st.floats(0, 1e10), st.integers(0, 10**9), st.booleans(), NAMES)
MEMBERS = st.builds(
    MemberBeat,
    IDS,
    NAMES,
    st.floats(0, 1e10),
    st.booleans(),
    st.booleans(),
    st.integers(0, MAX_PREFETCH),
    st.booleans(),
    st.frozensets(NAMES, max_size=4),
    st.dictionaries(IDS, LINKS, max_size=4),
)
FULL = st.builds(
    Beat,
    IDS,
    st.integers(0, 2**53),
    NAMES,
    NAMES,
    NAMES,
    st.none() | st.frozensets(NAMES, max_size=4),
    st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.id).map(tuple),
)
SHORT = st.builds(Beat, IDS, st.integers(0, 2**53))


@given(FULL | SHORT)
def test_a_beat_comes_back_as_it_was_sent(beat: Beat) -> None:
    assert decode(encode(beat)) == beat


def test_a_sign_of_life_is_short() -> None:
    assert len(encode(Beat("0123456789abcdef", 1_800_000_000_000))) < 80


def good(**changes: Any) -> dict[str, Any]:
    member = MemberBeat("m", "client", 5.0, refused=frozenset({"r"}), links={"s": LinkBeat(1, 2.0, 3, True, "")})
    return {**json.loads(encode(Beat("sidecar", 1, "host", "queue", "ring", frozenset({"s"}), (member,)))), **changes}


def with_member(**changes: Any) -> dict[str, Any]:
    return good(members=[{**good()["members"][0], **changes}])


MEMBER = good()["members"][0]
LINK = [2, 1.5, 0, False, ""]
TOO_MANY = {str(number): LINK for number in range(MAX_LINKS)}


def with_link(place: int, value: Any) -> dict[str, Any]:
    return with_member(links={"s": [*LINK[:place], value, *LINK[place + 1 :]]})


MISTAKES: list[tuple[Any, str]] = [
    ([], "object"),
    (good(version=1), "version"),
    (good(version=None), "version"),
    (good(sidecar=1), "sidecar"),
    (good(sidecar=""), "sidecar"),
    (good(sidecar="ü" * MAX_NAME), "ü.*more than 255 bytes"),
    (good(sidecar="x" * (MAX_NAME + 1)), "sidecar"),
    (good(host=None), "host"),
    (good(queue=5), "queue"),
    (good(ring=[]), "ring"),
    (good(shards="s"), "shards"),
    (good(shards=[1]), "shards"),
    (good(shards=list(map(str, range(MAX_SHARDS + 1)))), "shards"),
    (good(number=1.0), "number"),
    (good(number=True), "number"),
    (good(number=-1), "number"),
    (good(number=2**60), "number"),
    (good(members={}), "members"),
    (good(members=None), "members"),
    (good(members=[1]), "members"),
    (good(members=2 * good()["members"]), "members"),
    (good(members=[{}] * (MAX_MEMBERS + 1)), "members"),
    (with_member(id=None), "id"),
    (with_member(id=""), "id"),
    (with_member(client=5), "client"),
    (with_member(since="now"), "since"),
    (with_member(since=float("nan")), "no JSON"),
    (with_member(since=float("inf")), "no JSON"),
    (with_member(since=1e11 + 1), "since"),
    (with_member(since=-1), "since"),
    (with_member(since=True), "since"),
    (with_member(is_stalled=1), "is_stalled"),
    (with_member(is_leaving=None), "is_leaving"),
    (with_member(prefetch=None), "prefetch"),
    (with_member(prefetch=MAX_PREFETCH + 1), "prefetch"),
    (with_member(refused={}), "refused"),
    (with_member(refused=[None]), "refused"),
    (with_member(links=[]), "links"),
    (with_member(links={"s": {}}), "links"),
    (with_member(links={"s": [1, 2, 3]}), "length 5"),
    (with_member(links={"s": [*LINK, 1]}), "length 5"),
    (with_member(links={"s" * (MAX_NAME + 1): LINK}), "links"),
    (with_member(links={"\ud800": LINK}), "no JSON"),
    (with_link(0, 0), r"links\[...\]\[0\]"),
    (with_link(0, 4), r"links\[...\]\[0\]"),
    (with_link(0, True), r"links\[...\]\[0\]"),
    (with_link(1, "x"), r"links\[...\]\[1\]"),
    (with_link(2, None), r"links\[...\]\[2\]"),
    (with_link(3, 1), r"links\[...\]\[3\]"),
    (with_link(4, None), r"links\[...\]\[4\]"),
    (good(members=[{**MEMBER, "id": str(n), "links": TOO_MANY} for n in range(3)]), "members"),
]


@pytest.mark.parametrize(("body", "named"), MISTAKES)
def test_a_mistake_is_named(body: Any, named: str) -> None:
    with pytest.raises(BeatError, match=named):
        decode(json.dumps(body).encode())


def test_a_beat_of_another_release_names_its_sender() -> None:
    with pytest.raises(OtherVersionError) as raised:
        decode(json.dumps(good(version=VERSION + 1, members="else")).encode())
    assert (raised.value.sidecar, raised.value.version) == ("sidecar", VERSION + 1)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_BYTES + 1), b'"\\ud800"'])
def test_what_is_no_json_or_too_long_is_refused(body: bytes) -> None:
    with pytest.raises(BeatError):
        decode(body)


FIELDS = st.sampled_from(["version", "members", "links", "id", "number"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(FIELDS, x),
    )
)
def test_no_json_raises_anything_else(body: Any) -> None:
    with pytest.raises(BeatError):
        decode(json.dumps(body).encode())


def test_of_too_much_the_first_is_told() -> None:
    links = {str(number): LinkBeat(1, 1.0, 0, False, "") for number in range(MAX_LINKS - 1)}
    members = tuple(MemberBeat(str(number), "", 0.0, links=links) for number in range(2))
    told = decode(encode(Beat("s", 1, members=members))).told
    assert [len(member.links) for member in told] == [MAX_LINKS - 1, 1]
    many = tuple(MemberBeat(str(number), "", 0.0) for number in range(MAX_MEMBERS + 1))
    assert len(decode(encode(Beat("s", 1, members=many))).told) == MAX_MEMBERS


def test_a_text_is_cut_to_so_many_bytes_of_whole_characters() -> None:
    assert cut("x" * 999) == "x" * MAX_NAME
    assert cut("ü" * 999) == "ü" * (MAX_NAME // 2)
    assert cut("\ud800 is half a character") == "? is half a character"


def test_a_digest_is_of_the_shards_in_any_order() -> None:
    assert digest(["a", "b"]) == digest({"b", "a"})
    assert len({digest(each) for each in ([], ["a"], ["b"], ["a", "b"], ["ab"])}) == 5
