"""The decoding of JSON text from untrusted clients: how much is decoded at once, and how mistakes are told; pure.

Decoding makes a value of a few characters into fifty bytes and more, all in one step; only strings stay as long.
"""

import json
from typing import NoReturn

from proxy.http.formats.pairs import DuplicateKeyError, unique

MOST_STRUCTURE = 262144
"""Characters outside the strings of a text that is decoded at once."""

TOO_MUCH = "has more than {} characters outside its strings".format

_SLICE = 65536


class DecodingError(ValueError):
    """A text that is not decoded; the message says why."""

    def __init__(self, detail: str, *, too_large: bool = False) -> None:
        """Set what the message says; `too_large` makes the answer a 413."""
        super().__init__(detail)
        self.too_large = too_large


class AmbiguousError(DecodingError):
    """A text that is JSON, in which an object has one key twice."""


class _ConstantError(ValueError):
    """A word of Python's that is no JSON: NaN or an infinity."""


def refuse_constant(constant: str) -> NoReturn:
    """Raise an error for NaN and the infinities, which Python's decoder takes and JSON lacks (RFC 8259 section 6)."""
    raise _ConstantError(f"{constant} is not JSON")


def said(error: ValueError | RecursionError) -> str:
    """Return in words why a decoder gave up on a text."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | _ConstantError | DuplicateKeyError):
        return str(error)
    return "a number is too long"


def decode_json(body: bytes) -> object:
    """Return the value of a body of JSON, in UTF-8. Raises DecodingError."""
    try:
        text = body.decode()
        if exceeds(text):
            raise DecodingError(TOO_MUCH(MOST_STRUCTURE), too_large=True)
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except DecodingError:
        raise
    except DuplicateKeyError as error:
        raise AmbiguousError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise DecodingError(said(error)) from None


def exceeds(text: str, most: int = MOST_STRUCTURE) -> bool:
    """Return whether more than `most` characters of a JSON text lie outside its strings."""
    if len(text) <= most:
        return False
    structure = Structure(most)
    structure.add(text)
    return structure.size > most


class Structure:
    """The count of the characters outside strings in one JSON text, which comes in parts: 3 to 5 ms a MiB."""

    def __init__(self, most: int) -> None:
        """Count no farther than to somewhat above `most`."""
        self.size = 0
        self._most = most
        self._inside = 0
        """1 if the text counted so far ends inside a string, else 0."""
        self._cut = ""
        """The first half of what a backslash escapes."""

    def add(self, text: str) -> None:
        """Count the next part of the text."""
        for at in range(0, len(text), _SLICE):
            if self.size > self._most:
                return
            self._add(text[at : at + _SLICE])

    def _add(self, text: str) -> None:
        """Count the characters of the next part of a text that are outside strings, wherever the parts are cut."""
        # Without what is escaped, each quote begins or ends a string.
        text = (self._cut + text).replace("\\\\", "")
        self._cut = "\\" if text.endswith("\\") else ""
        parts = text.replace('\\"', "").split('"')
        self.size += sum(map(len, parts[self._inside :: 2]))
        self._inside ^= (len(parts) - 1) & 1
