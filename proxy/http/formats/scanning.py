"""The scanning of a body's text, in any chunking, for its items: JSON objects, by the standard library; pure."""

import json
import re
from collections.abc import Generator, Iterator
from enum import Enum, auto
from sys import getsizeof
from typing import Any

from proxy.http.formats.decoding import MOST_STRUCTURE, TOO_MUCH, Structure, exceeds, refuse_constant, said
from proxy.http.formats.pairs import unique

Item = dict[str, Any]

_NEAR = 16
"""The most characters between an error and the end of a text that breaks off, unless it does so inside a string.

The longest word that may break off, `-Infinity`, has 9.
"""

_MOST_DIGITS = 4300
"""Digits of the longest whole number that Python reads by default."""

_another = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=\{)").match
_space = re.compile(r"[ \t\n\r]*").match
_line_ends = re.compile(r"\n\n+").sub


class Framing(Enum):
    """A form of the text that stands around the items of a body."""

    OBJECT = auto()
    """An object with one member, `{"messages": [...]}`."""

    LINES = auto()
    """An object a line: NDJSON."""

    LIST = auto()
    """A bare list, whose items are called events."""


class BodyError(ValueError):
    """A body that cannot be read on; the message names the place and what is wrong there."""

    def __init__(self, index: int, detail: str, *, too_large: bool = False) -> None:
        """`index` is the number of items before the item at fault; `too_large` makes the answer a 413."""
        super().__init__(detail)
        self.index, self.too_large = index, too_large


# msgspec 0.22 decodes a whole item of 200 bytes in 0.24 us, where this takes 0.8, of the 4.8 that a message of a batch
# costs compiled. But it takes the last value of a key that stands twice, and decodes no object out of a text that goes
# on behind it, so a second scanner would have to find the end of each item first; and it calls a text truncated that
# has half a surrogate pair, where we name the field.
_decode = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique).raw_decode


def _at(error: json.JSONDecodeError, start: int) -> str:
    return f"{error.msg} at character {error.pos - start} of the item"


class _Text:
    """The text of a body that waits until an item is whole, the count of items before it, and its errors."""

    def __init__(self, most_item: int, framing: Framing) -> None:
        self.count = 0
        self._most_item = most_item
        self._called = "events" if framing is Framing.LIST else "messages"
        self._parts: list[str] = []
        self.size = self.held = 0
        """Characters of the text that is kept, and bytes of memory that it takes: Python stores a text with any
        character beyond ASCII two or four times as wide."""
        self._structure = Structure(MOST_STRUCTURE + _NEAR)
        """The count of the kept text's characters outside strings, made once the text is longer than MOST_STRUCTURE."""
        self._counted = 0
        """How many parts of the kept text `_structure` has counted."""

    def error(self, detail: str, *, too_large: bool = False) -> BodyError:
        """Return an error that names the next item as its place."""
        return BodyError(self.count, f"{self._called}[{self.count}]: {detail}", too_large=too_large)

    def _too_long(self) -> BodyError:
        return self.error(f"has more than {self._most_item} characters (max_body)", too_large=True)

    def _too_structured(self) -> BodyError:
        return self.error(TOO_MUCH(MOST_STRUCTURE), too_large=True)

    def _keep(self, text: str) -> None:
        """Add text behind what is kept, and count it."""
        self._parts.append(text)
        self.size += len(text)
        self.held += getsizeof(text)
        if self.size > MOST_STRUCTURE:
            for part in self._parts[self._counted :]:
                self._structure.add(part)
            self._counted = len(self._parts)

    def _kept(self) -> str:
        """Return all the text that was kept, which is one part from now on."""
        text = "".join(self._parts)
        self._parts, self.held = [text], getsizeof(text)
        self._counted = min(self._counted, 1)
        return text

    def _drop(self) -> None:
        self._parts, self.size, self.held = [], 0, 0
        if self._counted:
            self._structure, self._counted = Structure(MOST_STRUCTURE + _NEAR), 0


_BLANK = " \t\r"


class Lines(_Text):
    """The reader of NDJSON: an object a line, and blank lines; the last line needs no end."""

    def __init__(self, most_item: int) -> None:
        """Limit one item's JSON to `most_item` characters."""
        super().__init__(most_item, Framing.LINES)

    def take(self, text: str, *, now: bool = False) -> Iterator[Item]:
        """Yield the items of the lines that are whole by now.

        Raises BodyError for one that is too long or no object.
        """
        if "\n\n" in text:
            text = _line_ends("\n", text)
        first, *lines = text.split("\n")
        self._keep(first)
        if lines:
            yield from self._kept_line()
            self._keep(lines.pop())
            for line in lines:
                if len(line) > self._most_item:
                    raise self._too_long()
                if bare := line.strip(_BLANK):
                    yield self._item(bare)
                    self.count += 1
        self._check()

    def end(self) -> Iterator[Item]:
        """Yield the item of the last line, which needs no line end."""
        return self._kept_line()

    def _kept_line(self) -> Iterator[Item]:
        """Yield the item of the line whose beginning earlier text brought, unless it is blank, and drop its text.

        Raises BodyError if the line is too long or is no object.
        """
        self._check()
        line = self._kept()
        self._drop()
        if bare := line.strip(_BLANK):
            yield self._item(bare)
            self.count += 1

    def _check(self) -> None:
        if self.size > self._most_item:
            raise self._too_long()
        if self._structure.size > MOST_STRUCTURE:
            raise self._too_structured()

    def _item(self, bare: str) -> Item:
        """Return the item of a line that is given without the space around it. Raises BodyError."""
        if bare[0] != "{":
            raise self.error(f"begins with {bare[0]!r}, not as an object")
        try:
            found: tuple[Item, int] = _decode(bare)
        except json.JSONDecodeError as error:
            raise self.error(_at(error, 0)) from None
        except (ValueError, RecursionError) as error:
            raise self.error(said(error)) from None
        if found[1] < len(bare):
            raise self.error("has something after the object on the same line")
        return found[0]


class _State(Enum):
    """The state of a scan between items: the characters that may come next in a body."""

    BODY = auto()
    NAME = auto()
    COLON = auto()
    LIST = auto()
    FIRST = auto()
    ITEM = auto()
    AFTER_ITEM = auto()
    AFTER_LIST = auto()
    MORE = auto()
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
    _State.MORE: {},
    _State.DONE: {},
}
"""The state that a character leads to, by state; the name `"messages"` and the items are found apart."""

_MOVES_OF_A_LIST = _MOVES | {
    _State.FIRST: {"]": _State.DONE},
    _State.AFTER_ITEM: {",": _State.ITEM, "]": _State.DONE},
}
"""The states and characters of a body that is the bare list."""

_NAME = '"messages"'

_A_BATCH = '; send an object {"messages": [...]}, or one object a line with Content-Type application/x-ndjson'
"""The end of an error to a client whose body is not an object with messages."""

_A_BATCH_OF_EVENTS = "; send a list of events, or one event with Content-Type application/cloudevents+json"
"""The end of an error to a client whose body is not a list of events."""

_LONGEST_NAME = 60
"""Most characters of an unknown name that an error repeats."""

_name = re.compile(rf'"((?:[^"\\\x00-\x1f]|\\[^\x00-\x1f]){{0,{_LONGEST_NAME}}}+)(?!\\?\Z)').match
"""Match the part of a name that an error repeats; None if more text could still change it."""


class ItemList(_Text):
    """The objects of a list, which is the body or, called `messages`, its only member."""

    def __init__(self, most_item: int, framing: Framing) -> None:
        """Read items of `most_item` characters at most; `framing` is OBJECT or LIST."""
        super().__init__(most_item, framing)
        bare = framing is Framing.LIST
        self._state = _State.LIST if bare else _State.BODY
        self._moves = _MOVES_OF_A_LIST if bare else _MOVES
        self._due = 0
        """Characters at which a look at an unfinished item is worth while: half more than at the last."""
        self._stuck = ""
        """The fault of the unfinished item, told if nothing more comes; empty if being unfinished is all."""

    def take(self, text: str, *, now: bool = False) -> Iterator[Item]:
        """Yield the items that are whole by now. With `now` the text is scanned even before the next scan is due.

        Raises BodyError for text that is no such list, or an item that is too long or too deep.
        """
        self._keep(text)
        if self.size < self._due and not now and not self._overfull:
            return
        window, self._stuck = self._kept(), ""
        i = self._due = 0
        while not self._due and (i := _space(window, i).end()) < len(window):  # type: ignore[union-attr]
            c, state = window[i], self._state
            if c == "{" and state in (_State.ITEM, _State.FIRST):
                i = yield from self._items(window, i)
            elif (after := self._moves[state].get(c)) is not None:
                self._state = after
                i += 1
            elif state is _State.AFTER_LIST and c == ",":
                self._state = _State.MORE
                i += 1
            elif c == '"' and state in (_State.NAME, _State.MORE):
                if (end := self._named(window, i)) is None:
                    break
                self._state, i = _State.COLON, end
            else:
                raise self._misplaced(c)
        if i:
            self._drop()
            self._keep(window[i:])

    def _named(self, window: str, i: int) -> int | None:
        """Return the index behind the name `messages` at i; None if it is not whole. Raises BodyError for others."""
        if self._state is _State.NAME and window.startswith(_NAME, i):
            return i + len(_NAME)
        if (found := _name(window, i)) is None:
            return None
        wrong = "given twice" if found[1] == "messages" else "unknown field"
        hint = _A_BATCH if self._state is _State.NAME else ""
        raise BodyError(self.count, f"body: {found[1]}: {wrong}{hint}")

    @property
    def _overfull(self) -> bool:
        """Whether the kept text, if it is one item, has too many characters outside strings.

        The margin is for text that breaks off near its end.
        """
        return self._structure.size > MOST_STRUCTURE + _NEAR

    def _items(self, window: str, i: int) -> Generator[Item, None, int]:
        """Yield the objects in a row from i on; return where they stop, and set `_due` if one is not whole.

        Raises BodyError for an object that is too long, or that cannot be read.
        """
        while True:
            try:
                item, end = _decode(window, i)
            except (ValueError, RecursionError) as error:
                if (found := self._cut_off(error, window, i)) is None:
                    self._state = _State.ITEM
                    self._due = (len(window) - i) * 3 // 2
                    return i
                item, end = found
            if end - i > self._most_item:
                raise self._too_long()
            if self._structure.size > MOST_STRUCTURE and self._is_too_structured(window, i, end):
                raise self._too_structured()
            yield item
            self.count += 1
            if (another := _another(window, end)) is None:
                self._state = _State.AFTER_ITEM
                return end
            i = another.end()

    def end(self) -> Iterator[Item]:
        """Yield nothing more but what is whole; raise BodyError if the list has not ended."""
        yield from self.take("", now=True)
        if self._state is not _State.DONE:
            raise self.error(self._stuck or "the body ends before its JSON is complete")

    def _cut_off(self, error: ValueError | RecursionError, window: str, i: int) -> tuple[Item, int] | None:
        """Return the object that begins at i and where it ends, without the text behind the longest item, which must
        not matter: it may be there or not. Return None if the object is not whole yet. Raises BodyError.
        """
        if len(window) > (most := i + self._most_item + _NEAR):
            window = window[:most]
            try:
                found: tuple[Item, int] = _decode(window, i)
            except (ValueError, RecursionError) as another:
                error = another
            else:
                return found
        if (wrong := self._wrong(error, window, i)) is not None:
            raise wrong from None
        if i == 0 and self._overfull:
            raise self._too_structured() from None
        return None

    def _is_too_structured(self, window: str, i: int, end: int) -> bool:
        """Return whether a part of the window has too many characters outside strings, counted only if all has."""
        return self._structure.size > MOST_STRUCTURE and end - i > MOST_STRUCTURE and exceeds(window[i:end])

    def _wrong(self, error: ValueError | RecursionError, window: str, i: int) -> BodyError | None:
        """Return the error of the object that begins at i; None if more text may mend it."""
        overfull = len(window) - i == self._most_item + _NEAR
        if isinstance(error, json.JSONDecodeError):
            unfinished = error.msg.startswith("Unterminated") or error.pos == len(window)
            if error.pos - i > self._most_item or (unfinished and overfull):
                return self._too_long()
            if not unfinished and error.pos <= len(window) - _NEAR:
                if self._is_too_structured(window, i, error.pos):
                    return self._too_structured()
                return self.error(_at(error, i))
            self._stuck = "" if unfinished else _at(error, i)
            return None
        # A number too long to be whole may yet turn out a fraction.
        if not overfull and len(window) - len(window.rstrip("0123456789")) > _MOST_DIGITS:
            self._stuck = said(error)
            return None
        return self.error(said(error))

    def _misplaced(self, c: str) -> BodyError:
        """Return the error for a character that may not come next between items."""
        if self._state is _State.BODY and c == "[":
            return BodyError(self.count, f"body: a list{_A_BATCH}")
        if self._moves is _MOVES_OF_A_LIST and self._state is _State.LIST and c == "{":
            return BodyError(self.count, f"body: an object{_A_BATCH_OF_EVENTS}")
        if self._state in (_State.ITEM, _State.FIRST):
            return self.error(f"begins with {c!r}, not as an object")
        due = " or ".join(self._moves[self._state]) or "nothing more"
        if self._state is _State.NAME:
            due = _NAME
        elif self._state is _State.MORE:
            due = "a name"
        return BodyError(self.count, f"body: {c!r} where {due} should be")
