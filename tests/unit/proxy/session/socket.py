"""A connection without a network."""

import asyncio


class Socket(asyncio.Transport):
    """One end of a connection: what it was sent, whether it is read, and whether it was closed."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        """It is connected."""
        super().__init__()
        self.protocol, self.sent, self.is_closed, self.is_read = protocol, b"", False, True
        protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def taken(self) -> bytes:
        """Return the bytes that came since the last call."""
        data, self.sent = self.sent, b""
        return data

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass
