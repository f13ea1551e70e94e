"""The questions for which a method of a client's waits: whether a name is a queue's or a group's. Pure state."""

# mypyc: compiled

from collections import deque

from proxy.groups.model import Member


class Joining:
    """A client's basic.consume on a name that the setting `groups` has, until it shows whether that is a queue's."""

    __slots__ = ("decided", "is_group", "member", "refusal")

    def __init__(self, member: Member, refusal: tuple[int, str] | None) -> None:
        """`refusal` is the reply code and text that the member gets if the name is a group's; None for none."""
        self.member, self.refusal = member, refusal
        self.decided = False
        """Whether the frame that waits may go on."""
        self.is_group = False
        """Whether the member has joined; else the name is a queue's, and the broker gets the frame."""


class Question:
    """The question whether a name is a queue's or a group's, asked for a method other than basic.consume."""

    __slots__ = ("consumers", "decided", "exchange", "is_group", "left", "messages", "method", "name", "step")

    def __init__(self, name: str, method: int, exchange: str) -> None:
        """The frame of `method` waits for the answer."""
        self.name, self.method = name, method
        self.exchange = exchange
        """The exchange whose group has the name: first the part before the last slash, if that may be one."""
        self.step = 0
        """The step that the question is at: a `Step` of group_name.py, as an integer."""
        self.decided = False
        """Whether the frame that waits may go on."""
        self.is_group = False
        """Whether the name is a group's; else the broker gets the frame."""
        self.left: deque[str] = deque()
        """The shards whose passive queue.declare the broker has yet to answer."""
        self.messages = self.consumers = 0
        """The messages and consumers of all shards for which the broker has answered so far."""
