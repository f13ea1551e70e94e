"""Bodies of batches, fed whole, in single bytes and in any chunking, to items; and how they may break."""

import gzip
import json
import sys
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.formats import scanning
from proxy.http.formats.decoding import MOST_STRUCTURE
from proxy.http.formats.items import Items
from proxy.http.formats.scanning import BodyError, Framing, Item

ROOMY = 1 << 20


class Read:
    """The result of reading a body."""

    def __init__(self, chunks: Iterable[bytes], items: Items) -> None:
        self.items: list[Item] = []
        self.error: BodyError | None = None
        try:
            for chunk in chunks:
                for piece in items.pieces(chunk):
                    for item in piece:
                        self.items.append(item)
            for item in items.end():
                self.items.append(item)
        except BodyError as error:
            self.error = error
        assert self.error is None or self.error.index == len(self.items)

    @property
    def said(self) -> object:
        return self.items, str(self.error), self.error and self.error.too_large


def made(
    framing: Framing = Framing.OBJECT,
    *,
    ndjson: bool = False,
    gzip: bool = False,
    most_bytes: int = ROOMY,
    most_item: int = ROOMY,
) -> Items:
    return Items(Framing.LINES if ndjson else framing, gzip=gzip, most_bytes=most_bytes, most_item=most_item)


def fed(items: Items, data: bytes) -> Iterator[Item]:
    """The items, over all pieces."""
    return chain.from_iterable(items.pieces(data))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read(
    body: bytes,
    framing: Framing = Framing.OBJECT,
    *,
    ndjson: bool = False,
    most_bytes: int = ROOMY,
    most_item: int = ROOMY,
) -> Read:
    """The body fed whole, which single bytes and threes must give too."""
    whole, *others = [
        Read(chunks, made(framing, ndjson=ndjson, most_bytes=most_bytes, most_item=most_item))
        for chunks in ([body], pieces(body, 1), pieces(body, 3))
    ]
    for other in others:
        assert other.said == whole.said
    return whole


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise(sorted({0, len(data), *(place % (len(data) + 1) for place in places)}))]


A, B = {"key": "a", "payload": "x"}, {"key": "b", "payload": [1, -2.5e3, None, True, "ß€😀\n"]}

WHOLE = {
    "two": (json.dumps({"messages": [A, B]}), [A, B]),
    "compact": (json.dumps({"messages": [A, B]}, separators=(",", ":")), [A, B]),
    "over lines": (json.dumps({"messages": [A, B]}, indent="\t"), [A, B]),
    "not ASCII": (json.dumps({"messages": [A, B]}, ensure_ascii=False), [A, B]),
    "none": ('{"messages":[]}', []),
    "empty ones": ('{"messages":[{},{} , {}]}', [{}, {}, {}]),
    "space everywhere": ('\r\n { \t"messages" : [ {"key":"a"} \n,\n {} ] \n} \n', [{"key": "a"}, {}]),
    "brackets in strings": ('{"messages":[{"payload":"]},{[\\"\\\\"}]}', [{"payload": ']},{["\\'}]),
    "half a pair": ('{"messages":[{"payload":"\\ud800"}]}', [{"payload": "\ud800"}]),
    "a pair": ('{"messages":[{"payload":"\\ud83d\\ude00"}]}', [{"payload": "😀"}]),
    "long digits": ('{"messages":[{"payload":' + "7" * 5000 + ".5}]}", [{"payload": float("inf")}]),
}


@pytest.mark.parametrize(("body", "items"), WHOLE.values(), ids=WHOLE)
def test_a_list_of_items(body: str, items: list[Item]) -> None:
    assert read(body.encode()).said == (items, "None", None)


@pytest.mark.parametrize("items", [[], [{}], [A, B], [{}, {"a": "]"}, {}]])
@pytest.mark.parametrize("space", ["", " ", "\r\n\t"])
def test_just_a_list_of_items(items: list[Item], space: str) -> None:
    body = f"{space},{space}".join(map(json.dumps, items))
    body = f"{space}[{space}{body}{space}]{space}"
    assert read(body.encode(), Framing.LIST).said == (items, "None", None)


LINES = {
    "two": (f"{json.dumps(A)}\n{json.dumps(B)}\n", [A, B]),
    "no last line end": (f"{json.dumps(A)}\n{json.dumps(B)}", [A, B]),
    "as Windows ends lines": (f"{json.dumps(A)}\r\n{json.dumps(B)}\r\n", [A, B]),
    "many line ends": (f"\n\n\n{json.dumps(A)}\n\n\n\n{json.dumps(B)}\n\n\n", [A, B]),
    "blank lines": (f"\n  \n\t{json.dumps(A)} \n\r\n\n{json.dumps(B)}\n\n ", [A, B]),
    "not ASCII": (json.dumps(B, ensure_ascii=False), [B]),
    "other line ends in a string": ('{"key":"a\u2028b\x85c"}', [{"key": "a\u2028b\x85c"}]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("body", "items"), LINES.values(), ids=LINES)
def test_an_item_a_line(body: str, items: list[Item]) -> None:
    assert read(body.encode(), ndjson=True).said == (items, "None", None)


A_BATCH = '; send an object {"messages": [...]}, or one object a line with Content-Type application/x-ndjson'
EVENTS = "; send a list of events, or one event with Content-Type application/cloudevents+json"

BROKEN = {
    b"": (0, "messages[0]: the body ends before its JSON is complete"),
    b"\xef\xbb\xbf{}": (0, "body: begins with a byte order mark"),
    b"[{}]": (0, f"body: a list{A_BATCH}"),
    b"[]": (0, f"body: a list{A_BATCH}"),
    b"7": (0, "body: '7' where { should be"),
    b'{"message":[]}': (0, f"body: message: unknown field{A_BATCH}"),
    b'{"messages":{}}': (0, "body: '{' where [ should be"),
    b'{"messages":null}': (0, "body: 'n' where [ should be"),
    b"{}": (0, "body: '}' where \"messages\" should be"),
    b'{"messages"': (0, "messages[0]: the body ends before its JSON is complete"),
    b'{"mess': (0, "messages[0]: the body ends before its JSON is complete"),
    b'{"messages":[': (0, "messages[0]: the body ends before its JSON is complete"),
    b'{"messages":[1]}': (0, "messages[0]: begins with '1', not as an object"),
    b'{"messages":[{},"a"]}': (1, "messages[1]: begins with '\"', not as an object"),
    b'{"messages":[{},]}': (1, "messages[1]: begins with ']', not as an object"),
    b'{"messages":[{}{}]}': (1, "body: '{' where , or ] should be"),
    b'{"messages":[{}}': (1, "body: '}' where , or ] should be"),
    b'{"messages":[{}],"more":1}': (1, "body: more: unknown field"),
    b'{"messages":[{}]\n,\t"more"': (1, "body: more: unknown field"),
    b'{"more":1,"messages":[{}]}': (0, f"body: more: unknown field{A_BATCH}"),
    b'{"\\"\\\\":1}': (0, f'body: \\"\\\\: unknown field{A_BATCH}'),
    b'{"a\nb":1}': (0, f"body: a: unknown field{A_BATCH}"),
    b'{"":1}': (0, f"body: : unknown field{A_BATCH}"),
    b'{"' + b"m" * 60 + b'":1}': (0, f"body: {'m' * 60}: unknown field{A_BATCH}"),
    b'{"' + b"m" * 99 + b'":1}': (0, f"body: {'m' * 60}: unknown field{A_BATCH}"),
    b'{"' + b"m" * 60: (0, "messages[0]: the body ends before its JSON is complete"),
    b'{"messages":[{}],"more': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{}],"more\\': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{}],"messages":[{}]}': (1, "body: messages: given twice"),
    b'{"messages":[{}],}': (1, "body: '}' where a name should be"),
    b'{"messages":[{}],1}': (1, "body: '1' where a name should be"),
    b"{messages:[]}": (0, "body: 'm' where \"messages\" should be"),
    b'{"messages":[{}]': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{}]}}': (1, "body: '}' where nothing more should be"),
    b'{"messages":[{}]} {"messages":[{}]}': (1, "body: '{' where nothing more should be"),
    b'{"messages":[{}]}\x00': (1, "body: '\\x00' where nothing more should be"),
    b'{"messages":[{"key":"\\u00e0"}]': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{},{"key"': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{},{"key":"a': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{},{"key":"a"': (1, "messages[1]: the body ends before its JSON is complete"),
    b'{"messages":[{},{"key":x}]}': (1, "messages[1]: Expecting value at character 7 of the item"),
    b'{"messages":[{},{"key":x}, ' + b"{}, " * 50: (1, "messages[1]: Expecting value at character 7 of the item"),
    b'{"messages":[{"a":"\n"}]}': (0, "messages[0]: Invalid control character at at character 6 of the item"),
    b'{"messages":[{"a":NaN}]}': (0, "messages[0]: NaN is not JSON"),
    b'{"messages":[{"a":[-Infinity]}]}': (0, "messages[0]: -Infinity is not JSON"),
    b'{"messages":[{"a":' + b"[" * 99_999 + b"]" * 99_999 + b"}]}": (0, "messages[0]: nested too deeply"),
    b'{"messages":[{},{"key":"\xff"}]}': (1, "messages[1]: the byte 0xff is not UTF-8 here"),
    b'{"messages":[{"key":"\xc3': (0, "messages[0]: the body ends in the middle of a character"),
    b'{"messages":[{"key":x,"payload":"yyyyyyyyyyy\xff': (0, "messages[0]: Expecting value at character 7 of the item"),
}


@pytest.mark.parametrize(("body", "index", "text"), [(body, *error) for body, error in BROKEN.items()])
def test_what_breaks_a_list(body: bytes, index: int, text: str) -> None:
    error = read(body).error
    assert error is not None
    assert (error.index, str(error), error.too_large) == (index, text, False)


BROKEN_JUST_A_LIST = {
    b"": (0, "events[0]: the body ends before its JSON is complete"),
    b"[": (0, "events[0]: the body ends before its JSON is complete"),
    b"[{}": (1, "events[1]: the body ends before its JSON is complete"),
    b"[{},": (1, "events[1]: the body ends before its JSON is complete"),
    b"{}": (0, f"body: an object{EVENTS}"),
    b'{"messages":[]}': (0, f"body: an object{EVENTS}"),
    b"[7]": (0, "events[0]: begins with '7', not as an object"),
    b"[{},]": (1, "events[1]: begins with ']', not as an object"),
    b"[{}}": (1, "body: '}' where , or ] should be"),
    b"[{}]]": (1, "body: ']' where nothing more should be"),
    b"[{}],": (1, "body: ',' where nothing more should be"),
    b"[{}]}": (1, "body: '}' where nothing more should be"),
    b"[][]": (0, "body: '[' where nothing more should be"),
    b'[{},{"id":x}]': (1, "events[1]: Expecting value at character 6 of the item"),
    b"[{},{\xff}]": (1, "events[1]: the byte 0xff is not UTF-8 here"),
}


@pytest.mark.parametrize(("body", "index", "text"), [(body, *error) for body, error in BROKEN_JUST_A_LIST.items()])
def test_what_breaks_just_a_list(body: bytes, index: int, text: str) -> None:
    error = read(body, Framing.LIST).error
    assert error is not None
    assert (error.index, str(error), error.too_large) == (index, text, False)


BROKEN_LINES = {
    b"\xef\xbb\xbf{}": (0, "body: begins with a byte order mark"),
    b'{}\n{"a":\n1}': (1, "messages[1]: Expecting value at character 5 of the item"),
    b"{}\n{} {}\n": (1, "messages[1]: has something after the object on the same line"),
    b"{},\n{}": (0, "messages[0]: has something after the object on the same line"),
    b"{}\n[]\n{}": (1, "messages[1]: begins with '[', not as an object"),
    b'{}\n\n{"a": "b': (1, "messages[1]: Unterminated string starting at at character 6 of the item"),
    b'{}\n{"a": Infinity}': (1, "messages[1]: Infinity is not JSON"),
    b'{"a": ' + b"[" * 99_999: (0, "messages[0]: nested too deeply"),
    b"{}\n{}\xff\n": (1, "messages[1]: the byte 0xff is not UTF-8 here"),
    b"\x0b{}": (0, "messages[0]: begins with '\\x0b', not as an object"),
}


@pytest.mark.parametrize(("body", "index", "text"), [(body, *error) for body, error in BROKEN_LINES.items()])
def test_what_breaks_lines(body: bytes, index: int, text: str) -> None:
    error = read(body, ndjson=True).error
    assert error is not None
    assert (error.index, str(error), error.too_large) == (index, text, False)


@pytest.mark.parametrize("ndjson", [False, True])
def test_a_number_of_too_many_digits(ndjson: bool) -> None:
    item = b'{"a":' + b"7" * 5000 + b"}"
    body = item if ndjson else b'{"messages":[' + item + b"]}"
    error = read(body, ndjson=ndjson).error
    assert error is not None
    assert str(error) == "messages[0]: a number is too long"


# Limits.


@pytest.mark.parametrize("ndjson", [False, True])
def test_the_body_may_have_just_the_bytes_that_are_the_most(ndjson: bool) -> None:
    body = b"{}\n{}" if ndjson else b'{"messages":[{},{}]}'
    assert read(body, ndjson=ndjson, most_bytes=len(body)).said == ([{}, {}], "None", None)
    for size in range(len(body)):
        found = read(body, ndjson=ndjson, most_bytes=size)
        assert found.error is not None
        assert found.error.too_large
        assert (
            str(found.error) == f"messages[{found.error.index}]: the body has more than {size} bytes (max_batch_body)"
        )
    assert found.error
    assert found.error.index == 2 - ndjson


@pytest.mark.parametrize("ndjson", [False, True])
def test_an_item_may_have_just_the_characters_that_are_the_most(ndjson: bool) -> None:
    item = json.dumps({"payload": "ä" * 80}, ensure_ascii=False)
    body = (f"{{}}\n{item}\n" if ndjson else f'{{"messages":[{{}},{item}]}}').encode()
    assert len(read(body, ndjson=ndjson, most_item=len(item)).items) == 2
    for most in range(2, len(item)):
        error = read(body, ndjson=ndjson, most_item=most).error
        assert error is not None
        assert (error.index, str(error), error.too_large) == (
            1,
            f"messages[1]: has more than {most} characters (max_body)",
            True,
        )


@pytest.mark.parametrize("lines", ["{}", " \r\t ", "\n\n {} "])
def test_a_line_has_its_limit_also_where_it_is_blank(lines: str) -> None:
    before, after = lines + "\n", "\n" + lines
    count = before.count("{}")
    assert len(read(f"{before}{' ' * 20}{after}".encode(), ndjson=True, most_item=20).items) == 2 * count
    for blank in (" " * 21, " " * 20 + "\r", "\t" * 500):
        for body in (before + blank + after, before + blank):
            error = read(body.encode(), ndjson=True, most_item=20).error
            assert error is not None
            said = f"messages[{count}]: has more than 20 characters (max_body)"
            assert (error.index, str(error), error.too_large) == (count, said, True)


def in_a_body(item: str, *, ndjson: bool) -> bytes:
    """Between others, as in a long body."""
    return (f"{{}}\n{item}\n{{}}" if ndjson else f'{{"messages":[{{}},{item},{{}}]}}').encode()


def structured(size: int) -> str:
    """An item of so many characters, and a string that has as many again."""
    return '{"payload":[' + "1," * ((size - 8) // 2) + "1" * (size % 2) + f'1],"a":"{"x" * size}"}}'


@pytest.mark.parametrize("ndjson", [False, True])
@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.long), 1000, 65536, 1 << 20])
def test_an_item_may_have_just_the_structure_that_is_the_most(ndjson: bool, chunk: int) -> None:
    for size, index in ((MOST_STRUCTURE, 3), (MOST_STRUCTURE + 1, 1), (MOST_STRUCTURE + 10_000, 1)):
        found = Read(pieces(in_a_body(structured(size), ndjson=ndjson), chunk), made(ndjson=ndjson, most_bytes=1 << 21))
        assert len(found.items) == index
        if index == 1:
            assert found.error is not None
            assert str(found.error) == "messages[1]: has more than 262144 characters outside its strings"
            assert found.error.too_large
        else:
            assert found.error is None


@pytest.mark.parametrize("ndjson", [False, True])
def test_a_long_string_is_no_structure_and_neither_are_many_items(ndjson: bool) -> None:
    long = json.dumps({"payload": 'line of "text"\n' * 100_000})
    many = ("\n" if ndjson else ",").join(["{}"] * 100_000)
    assert len(many) > MOST_STRUCTURE
    body = in_a_body(long + ("\n" if ndjson else ",") + many, ndjson=ndjson)
    for chunk in (999, 65536, len(body)):
        found = Read(pieces(body, chunk), made(ndjson=ndjson, most_bytes=1 << 23, most_item=1 << 22))
        assert found.error is None
        assert len(found.items) == 100_003


@pytest.mark.parametrize("ndjson", [False, True])
@pytest.mark.parametrize("chunk", [1000, 65536, 1 << 20])
def test_what_breaks_an_item_before_its_structure_is_too_much(ndjson: bool, chunk: int) -> None:
    for before in (MOST_STRUCTURE - 20_000, MOST_STRUCTURE + 20_000):
        item = '{"a":' + " " * before + "x" + " " * 100_000 + "}"
        error = Read(pieces(in_a_body(item, ndjson=ndjson), chunk), made(ndjson=ndjson)).error
        assert error is not None
        # A line has its end, so it is seen first that there is too much of it.
        assert error.too_large is (ndjson or before > MOST_STRUCTURE)


@pytest.mark.parametrize("ndjson", [False, True])
def test_an_item_of_many_small_values_is_not_decoded(ndjson: bool) -> None:
    body = in_a_body('{"payload":[' + "{}," * (4 << 20) + "1]}", ndjson=ndjson)
    items = made(ndjson=ndjson, most_bytes=1 << 30, most_item=1 << 25)
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match=r"^messages\[1\]: has more than 262144 characters outside its strings$"):
            list(fed(items, body))
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_an_item_without_end_is_not_gathered() -> None:
    items = made(most_bytes=1 << 30, most_item=100_000)
    assert list(fed(items, b'{"messages":[{"payload":"')) == []
    for _ in range(100_000 // 1000):
        assert list(fed(items, b"x" * 1000)) == []
    with pytest.raises(BodyError, match=r"messages\[0\]: has more than 100000 characters \(max_body\)"):
        list(fed(items, b"x" * 50_000))


def test_space_is_not_gathered() -> None:
    items = made(most_bytes=1 << 30, most_item=1000)
    for part in (b"{", b'"messages"', b":", b"[", b"{}", b",", b"{}", b"]", b"}", b""):
        for _ in range(100):
            assert list(fed(items, b" " * 1000)) == []
        list(fed(items, part))
    assert list(items.end()) == []


def test_a_large_item_in_small_chunks_is_not_scanned_for_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = 0

    def counted(window: str, i: int) -> object:
        nonlocal scans
        scans += 1
        return scan(window, i)

    scan = scanning._decode
    monkeypatch.setattr(scanning, "_decode", counted)
    item = {"payload": "x" * 500_000}
    body = json.dumps({"messages": [item]}).encode()
    assert Read(pieces(body, 100), made()).items == [item]
    assert scans < 40


# Compressed.


def zipped(body: bytes, chunk: int) -> Read:
    return Read(pieces(body, chunk), made(gzip=True))


LIST = json.dumps({"messages": [A, B] * 50}).encode()


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_gzip(chunk: int) -> None:
    assert zipped(gzip.compress(LIST), chunk).said == ([A, B] * 50, "None", None)


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_gzip_of_several_members(chunk: int) -> None:
    body = b"".join(gzip.compress(part) for part in (LIST[:99], b"", LIST[99:1234], LIST[1234:], b""))
    assert zipped(body, chunk).said == ([A, B] * 50, "None", None)


BROKEN_GZIP = {
    "not gzip": (LIST, "the body is not gzip: Error -3 while decompressing data: incorrect header check"),
    "zlib": (zlib.compress(LIST), "the body is not gzip: Error -3 while decompressing data: incorrect header check"),
    "nothing": (b"", "the body ends before its gzip data is complete"),
    "no checksum": (gzip.compress(LIST)[:-8], "the body ends before its gzip data is complete"),
    "a wrong checksum": (gzip.compress(LIST)[:-8] + bytes(8), "the body is not gzip: Error -3 .*incorrect data check"),
    "garbage": (gzip.compress(LIST) + b"garbage", "the body is not gzip: Error -3 .*incorrect header check"),
    "a null behind": (gzip.compress(LIST) + b"\0", "the body ends before its gzip data is complete"),
    "half a second member": (
        gzip.compress(LIST) + gzip.compress(b"  ")[:10],
        "the body ends before its gzip data is complete",
    ),
}


@pytest.mark.parametrize(("body", "text"), BROKEN_GZIP.values(), ids=BROKEN_GZIP)
@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_what_breaks_gzip(body: bytes, text: str, chunk: int) -> None:
    error = zipped(body, chunk).error
    assert error is not None
    with pytest.raises(BodyError, match=rf"^messages\[\d+\]: {text}"):
        raise error


def test_a_bomb_is_let_out_no_farther_than_the_limit() -> None:
    body = gzip.compress(b'{"messages":[' + b" " * (40 << 20), 1)
    tracemalloc.start()
    try:
        items = made(gzip=True, most_bytes=10 << 20)
        with pytest.raises(
            BodyError, match=r"^messages\[0\]: the body has more than 10485760 bytes \(max_batch_body\)$"
        ) as raised:
            list(fed(items, body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert raised.value.too_large
    assert peak < 2 << 20


def test_a_bomb_of_items_is_let_out_as_they_are_taken() -> None:
    items = made(gzip=True, most_bytes=1 << 30)
    taken = fed(items, gzip.compress(b'{"messages":[' + b"{}," * (4 << 20), 1))
    tracemalloc.start()
    try:
        assert [next(taken) for _ in range(10_000)] == [{}] * 10_000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("blank", ["\n", "\r\n", " \n"])
def test_a_bomb_of_blank_lines_is_let_out_by_the_piece(blank: str) -> None:
    items = made(ndjson=True, gzip=True, most_bytes=1 << 30)
    data = gzip.compress((blank * (1 << 19) + "{}\n" + blank * (1 << 19)).encode(), 1)
    found = [list(piece) for piece in items.pieces(data)]
    assert len(found) >= len(blank) * (1 << 20) // 65536
    assert [item for piece in found for item in piece] == [{}]
    assert items.held < 4 + sys.getsizeof("")


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("character", ["x", "é", "中", "🐇"])
def test_what_one_wide_character_makes_of_an_item_counts(framing: Framing, character: str) -> None:
    """Python keeps a text as wide as its widest character."""
    items = Items(framing, gzip=False, most_bytes=1 << 30, most_item=1 << 30)
    before = {Framing.OBJECT: '{"messages":[', Framing.LINES: "", Framing.LIST: "["}[framing]
    data = f'{before}{{"payload":"{character}'.encode() + b"x" * (3 << 20)
    tracemalloc.start()
    try:
        for piece in items.pieces(data):
            assert list(piece) == []
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert items.held > 3 << 20
    assert abs(held - items.held) < 1 << 14


@pytest.mark.parametrize("ndjson", [False, True])
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_long_part_comes_in_pieces(ndjson: bool, gzipped: bool) -> None:
    body = (b"{}\n" * 100_000) if ndjson else b'{"messages":[' + b",".join([b"{}"] * 100_000) + b"]}"
    items = made(ndjson=ndjson, gzip=gzipped)
    counts = [len(list(piece)) for piece in items.pieces(gzip.compress(body) if gzipped else body)]
    assert sum(counts) == 100_000
    assert max(counts) <= 65536 // 3 + 1


def test_compressed_bytes_count_too() -> None:
    empty = gzip.compress(b"")
    found = Read(pieces(empty * 1000, 1000), made(gzip=True, most_bytes=10_000))
    assert found.error is not None
    assert found.error.too_large


# Any chunking gives the same.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
ITEMS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=6)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Framing, list[Item], bytes]:
    framing, items, ascii_only = draw(st.sampled_from(Framing)), draw(ITEMS), draw(st.booleans())
    if framing is Framing.LINES:
        ends = [draw(st.sampled_from(["\n", "\r\n", "\n\n \n"])) for _ in items]
        texts = [json.dumps(item, ensure_ascii=ascii_only) + end for item, end in zip(items, ends, strict=True)]
        body = "".join(texts)
    else:
        value = items if framing is Framing.LIST else {"messages": items}
        body = json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
    return framing, items, body.encode("utf-8", "surrogatepass")


PLACES = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(bodies(), PLACES, st.booleans())
def test_any_chunking_gives_the_items(
    drawn: tuple[Framing, list[Item], bytes], places: list[int], gzipped: bool
) -> None:
    framing, items, body = drawn
    data = gzip.compress(body, 1) if gzipped else body
    assert Read(cut(data, places), made(framing, gzip=gzipped)).said == (items, "None", None)


@given(bodies(), PLACES, st.data())
def test_any_chunking_of_any_damage_gives_the_same_error(
    drawn: tuple[Framing, list[Item], bytes], places: list[int], data: st.DataObject
) -> None:
    framing, _, body = drawn
    at = data.draw(st.integers(0, len(body)))
    put = data.draw(
        st.sampled_from([b"", b"\xff", b'"', b"{", b"}", b"]", b",", b"\\", b"1", b"-", b"x", b"\n", b"NaN"])
    )
    kept = data.draw(st.sampled_from([len(body), at, at + 1, at + 20]))
    most_bytes = data.draw(st.sampled_from([ROOMY, max(0, len(body) - 7)]))
    most_item = data.draw(st.sampled_from([ROOMY, 20]))
    damaged = body[:at] + put + body[at:kept]
    whole, cut_up, bytewise = [
        Read(chunks, made(framing, most_bytes=most_bytes, most_item=most_item))
        for chunks in ([damaged], cut(damaged, places), pieces(damaged, 1))
    ]
    assert cut_up.said == whole.said == bytewise.said


@pytest.mark.parametrize("ndjson", [False, True])
@pytest.mark.parametrize(
    ("item", "key"),
    [
        (b'{"key":"a","payload":"","key":"b"}', "'key'"),
        (b'{"key":"a","payload":"","headers":{"x":1,"y":2,"x":1}}', "'x'"),
        (b'{"key":"a","payload":{"deep":[{"\\u0061":1,"a":2}]}}', "'a'"),
        (b'{"' + b"k" * 500 + b'":1,"' + b"k" * 500 + b'":2}', "'" + "k" * 59),
    ],
)
def test_a_key_that_stands_twice_is_told(item: bytes, key: str, *, ndjson: bool) -> None:
    whole = b'{"key":"k","payload":"p"}'
    body = (
        whole + b"\n" + item + b"\n" + whole if ndjson else b'{"messages":[' + b",".join((whole, item, whole)) + b"]}"
    )
    for chunks in ([body], [body[i : i + 1] for i in range(len(body))]):
        read = Read(chunks, made(ndjson=ndjson))
        assert read.items == [{"key": "k", "payload": "p"}]
        assert str(read.error) == f"messages[1]: {key} stands twice in one object"
