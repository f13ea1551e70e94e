"""The items of a batch: a body's bytes, in any chunking, to JSON objects. Sans-I/O.

Nothing holds the whole body: a window of it goes through the standard library's scanner, item by item.
"""

import codecs
import json
import re
import zlib
from collections.abc import Generator, Iterator
from enum import Enum, auto
from typing import Any, NoReturn

Item = dict[str, Any]

_PIECE = 65536
"""Bytes that are decompressed at a time."""

_NEAR = 16
"""Characters. What breaks off gives an error no farther from its end, unless inside a string (`-Infinity` has 9)."""

_MOST_DIGITS = 4300
"""Of a whole number, as Python reads them by default."""

_GZIP = 16 + zlib.MAX_WBITS

_another = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=\{)").match
_space = re.compile(r"[ \t\n\r]*").match


class BodyError(ValueError):
    """A body that cannot be read on; the message names the place and what is wrong there."""

    def __init__(self, index: int, detail: str, *, too_large: bool = False) -> None:
        """`index` is that of the item at fault, so also the number of items before it; `too_large` makes it a 413."""
        super().__init__(detail)
        self.index, self.too_large = index, too_large


class Items:
    """The objects in `{"messages": [...]}` or, with `ndjson`, one a line."""

    def __init__(self, *, ndjson: bool, gzip: bool, most_bytes: int, most_item: int) -> None:
        """`most_bytes` of the body, decompressed; `most_item` characters of one item's JSON."""
        self._parser = _Lines(most_item) if ndjson else _List(most_item)
        self._gunzip = _Gunzip() if gzip else None
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._begun = False
        self._most_bytes = self._left = self._compressed_left = most_bytes

    def feed(self, data: bytes) -> Iterator[Item]:
        """The items that are whole by now; to be taken to the last before the next call.

        Raises BodyError after the items before the fault; nothing can be fed from then on.
        """
        if self._gunzip is None:
            yield from self._bytes(data)
            return
        self._compressed_left -= len(data)
        try:
            for piece in self._gunzip.pieces(data):
                yield from self._bytes(piece)
        except zlib.error as error:
            yield from self._broken(f"the body is not gzip: {error}")
        if self._compressed_left < 0:
            yield from self._too_large()

    @property
    def held(self) -> int:
        """Characters of an item that is not whole yet."""
        return self._parser.size

    def end(self) -> Iterator[Item]:
        """The items that only the end of the body makes whole. Raises BodyError where it ends too early."""
        if self._gunzip is not None and not self._gunzip.whole:
            yield from self._broken("the body ends before its gzip does")
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            yield from self._broken("the body ends inside a character")
        yield from self._parser.end()

    def _bytes(self, data: bytes) -> Iterator[Item]:
        fault = ""
        try:
            text = self._decoder.decode(data[: self._left])
        except UnicodeDecodeError as error:
            text = error.object[: error.start].decode()
            fault = f"the byte {error.object[error.start]:#04x} is not UTF-8 here"
        if text and not self._begun:
            self._begun = True
            if text[0] == "\ufeff":
                raise BodyError(0, "body: begins with a byte order mark")
        yield from self._parser.take(text)
        if fault:
            yield from self._broken(fault)
        self._left -= len(data)
        if self._left < 0:
            yield from self._too_large()

    def _too_large(self) -> Iterator[Item]:
        return self._broken(f"the body has more than {self._most_bytes} bytes", too_large=True)

    def _broken(self, detail: str, *, too_large: bool = False) -> Iterator[Item]:
        """What there is before the body's own fault, which may be an earlier one."""
        yield from self._parser.take("", now=True)
        raise self._parser.error(detail, too_large=too_large)


class _Gunzip:
    """Decompresses gzip (RFC 1952), of one member or more, by no more than a piece at a time."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)

    @property
    def whole(self) -> bool:
        """Whether the last member has ended."""
        return self._member.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What is in the data. Raises zlib.error, also for what follows a member and is none."""
        full = False
        while data or full:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP)
            piece = self._member.decompress(data, _PIECE)
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            # More may lie ready inside the decompressor, although it has taken all.
            full = len(piece) == _PIECE and not self._member.eof
            yield piece


def refuse_constant(constant: str) -> NoReturn:
    """For a decoder's `parse_constant`: Python takes NaN and the infinities, JSON has none (RFC 8259 section 6)."""
    raise ValueError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=refuse_constant).raw_decode


def _at(error: json.JSONDecodeError, start: int) -> str:
    return f"{error.msg} at character {error.pos - start} of the item"


class _Text:
    """What both forms share: text that waits to be made whole, the count of items, and the errors of one."""

    def __init__(self, most_item: int) -> None:
        self.count = 0
        self._most_item = most_item
        self._parts: list[str] = []
        self.size = 0
        """Characters of it."""

    def error(self, detail: str, *, too_large: bool = False) -> BodyError:
        """At the item that would be next."""
        return BodyError(self.count, f"messages[{self.count}]: {detail}", too_large=too_large)

    def _too_long(self) -> BodyError:
        return self.error(f"has more than {self._most_item} characters", too_large=True)

    def _unreadable(self, error: ValueError | RecursionError) -> BodyError:
        """Of what the scanner gives up on at no given place."""
        return self.error("is nested too deeply" if isinstance(error, RecursionError) else str(error))

    def _keep(self, text: str) -> None:
        self._parts.append(text)
        self.size += len(text)

    def _kept(self) -> str:
        """All that was kept; no longer kept then."""
        text = "".join(self._parts)
        self._parts.clear()
        self.size = 0
        return text


class _Lines(_Text):
    """One object a line, blank lines apart; the last needs no line end."""

    def take(self, text: str, *, now: bool = False) -> Iterator[Item]:
        """The items of the lines that are whole by now."""
        lines = text.split("\n")
        self._keep(lines[0])
        if len(lines) > 1:
            lines[0] = self._kept()
            self._keep(lines.pop())
            for line in lines:
                yield from self._line(line)
        if self.size > self._most_item:
            raise self._too_long()

    def end(self) -> Iterator[Item]:
        """The last line's."""
        return self._line(self._kept())

    def _line(self, line: str) -> Iterator[Item]:
        if len(line) > self._most_item:
            raise self._too_long()
        line = line.strip(" \t\r")
        if not line:
            return
        if line[0] != "{":
            raise self.error(f"begins with {line[0]!r}, not as an object")
        try:
            item, end = _decode(line)
        except json.JSONDecodeError as error:
            raise self.error(_at(error, 0)) from None
        except (ValueError, RecursionError) as error:
            raise self._unreadable(error) from None
        if end < len(line):
            raise self.error("something follows the object on its line")
        yield item
        self.count += 1


class _State(Enum):
    """Of the body around the items: what comes next."""

    BODY = auto()
    NAME = auto()
    COLON = auto()
    LIST = auto()
    FIRST = auto()
    ITEM = auto()
    AFTER_ITEM = auto()
    AFTER_LIST = auto()
    DONE = auto()


_MOVES: dict[_State, dict[str, _State]] = {
    _State.BODY: {"{": _State.NAME},
    _State.NAME: {},
    _State.COLON: {":": _State.LIST},
    _State.LIST: {"[": _State.FIRST},
    _State.FIRST: {"]": _State.AFTER_LIST},
    _State.ITEM: {},
    _State.AFTER_ITEM: {",": _State.ITEM, "]": _State.AFTER_LIST},
    _State.AFTER_LIST: {"}": _State.DONE},
    _State.DONE: {},
}
"""What one character leads to; beside it there are only the name, `"messages"`, and the items."""

_NAME = '"messages"'


class _List(_Text):
    """The objects of the list `messages`, the only member of the body."""

    def __init__(self, most_item: int) -> None:
        super().__init__(most_item)
        self._state = _State.BODY
        self._due = 0
        """Characters at which a look at an unfinished item is worth while: half more than at the last."""
        self._stuck = ""
        """What is wrong with the unfinished item if nothing more comes, unless just that."""

    def take(self, text: str, *, now: bool = False) -> Iterator[Item]:
        """The items that are whole by now; `now`: also where a look is not due."""
        self._keep(text)
        if self.size < self._due and not now:
            return
        window, self._stuck = self._kept(), ""
        i = self._due = 0
        while not self._due and (i := _space(window, i).end()) < len(window):  # type: ignore[union-attr]
            c, state = window[i], self._state
            if c == "{" and state in (_State.ITEM, _State.FIRST):
                i = yield from self._items(window, i)
            elif (after := _MOVES[state].get(c)) is not None:
                self._state = after
                i += 1
            elif state is _State.NAME and _NAME.startswith(window[i : i + len(_NAME)]):
                if len(window) - i < len(_NAME):
                    break
                self._state = _State.COLON
                i += len(_NAME)
            else:
                raise self._misplaced(c)
        self._keep(window[i:])

    def _items(self, window: str, i: int) -> Generator[Item, None, int]:
        """The objects in a row from i on; returns where they stop, and sets `_due` if one is not whole."""
        while (found := self._item(window, i)) is not None:
            item, i = found
            yield item
            self.count += 1
            if (another := _another(window, i)) is None:
                self._state = _State.AFTER_ITEM
                return i
            i = another.end()
        self._state = _State.ITEM
        self._due = (len(window) - i) * 3 // 2
        return i

    def end(self) -> Iterator[Item]:
        """None; raises BodyError if the list has not ended."""
        yield from self.take("", now=True)
        if self._state is not _State.DONE:
            raise self.error(self._stuck or "the body ends before it is whole")

    def _item(self, window: str, i: int) -> tuple[Item, int] | None:
        """The object that begins at i and where it ends; None if it is not whole yet."""
        try:
            found: tuple[Item, int] = _decode(window, i)
        except (ValueError, RecursionError) as error:
            most = i + self._most_item + _NEAR
            if len(window) > most:
                # What lies behind the longest item must not matter: it may be there or not.
                return self._item(window[:most], i)
            if (wrong := self._wrong(error, window, i)) is not None:
                raise wrong from None
            return None
        if found[1] - i > self._most_item:
            raise self._too_long()
        return found

    def _wrong(self, error: ValueError | RecursionError, window: str, i: int) -> BodyError | None:
        """What is wrong with the object that begins at i; None if more text may mend it."""
        overfull = len(window) - i == self._most_item + _NEAR
        if isinstance(error, json.JSONDecodeError):
            unfinished = error.msg.startswith("Unterminated") or error.pos == len(window)
            if error.pos - i > self._most_item or (unfinished and overfull):
                return self._too_long()
            if not unfinished and error.pos <= len(window) - _NEAR:
                return self.error(_at(error, i))
            self._stuck = "" if unfinished else _at(error, i)
            return None
        # A number too long to be whole may yet turn out a fraction.
        if not overfull and len(window) - len(window.rstrip("0123456789")) > _MOST_DIGITS:
            self._stuck = str(error)
            return None
        return self._unreadable(error)

    def _misplaced(self, c: str) -> BodyError:
        if self._state in (_State.ITEM, _State.FIRST):
            return self.error(f"begins with {c!r}, not as an object")
        due = " or ".join(_MOVES[self._state]) or "nothing more"
        if self._state is _State.NAME:
            due = _NAME
        return BodyError(self.count, f"body: {c!r} where {due} should be")
