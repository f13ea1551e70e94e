"""The arguments of a method, read field by field in their order (AMQP section 4.2.5).

They are for methods that come seldom. The loops over frames read publishes, deliveries and acks by their offsets, which
saves the copy and the calls.
"""

# mypyc: compiled

from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small

from proxy.wire import table
from proxy.wire.frames import short_string


class Arguments:
    """The arguments of one method frame, and how far they have been read."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, i: int, end: int, at: int = 0) -> None:
        """Take the method whose frame goes from `i` to `end`, and pass over the first `at` bytes of its arguments.

        Many methods begin with two bytes that are reserved.
        """
        self._data, self._at = data[i + 11 : end - 1], at

    @property
    def left(self) -> int:
        """The number of bytes that have not been read; below 0 if more were passed over than there are."""
        return len(self._data) - self._at

    @property
    def read(self) -> bytes:
        """The bytes that have been read or passed over."""
        return self._data[: self._at]

    @property
    def rest(self) -> bytes:
        """The bytes that have not been read."""
        return self._data[self._at :]

    def octets(self, size: int) -> bytes:
        """Return so many bytes. Raises struct.error if there are fewer."""
        if size > self.left:
            raise StructError("the arguments of a method run past their frame")
        self._at += size
        return self._data[self._at - size : self._at]

    def octet(self) -> int:
        """Return an integer of one byte. Raises struct.error if there is none."""
        return self.octets(1)[0]

    def bits(self) -> int:
        """Return the byte with the next bits; 0 if there is none."""
        return self.octet() if self.left > 0 else 0

    def short(self) -> int:
        """Return an integer of two bytes. Raises struct.error if there are fewer."""
        return int.from_bytes(self.octets(2))

    def long(self) -> int:
        """Return an integer of four bytes. Raises struct.error if there are fewer."""
        return int.from_bytes(self.octets(4))

    def longlong(self) -> int:
        """Return an integer of eight bytes. Raises struct.error if there are fewer."""
        return int.from_bytes(self.octets(8))

    def short_string(self) -> bytes:
        """Return a short string. Raises Fault 502 if it runs past the frame."""
        value, self._at = short_string(self._data, self._at, len(self._data))
        return value

    def long_string(self) -> bytes:
        """Return a long string, or the fields of a table. Raises struct.error if it runs past the frame."""
        return self.octets(self.long())


def broker_in(start: Arguments) -> tuple[str | None, tuple[int, int]]:
    """Return the cluster's name and the broker's version from connection.start, read up to its mechanisms.

    The name is None if the broker gives none, and the version is 0.0 if it has none of the form of `4.3`.
    """
    start.short()  # the protocol's version
    properties = start.long_string()
    name, version = table.text(properties, b"cluster_name"), table.text(properties, b"version")
    parts = (version or b"").split(b".")
    known = len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()
    release = (int(parts[0]), int(parts[1])) if known else (0, 0)
    return name.decode(errors="replace") if name is not None else None, release
