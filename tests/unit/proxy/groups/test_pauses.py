"""Orders to pause and to resume: which shards are paused by them, and which of them count."""

import msgspec
import pytest

from proxy.groups.group import Group
from proxy.groups.operators import MAX_BYTES, Operators, OrderError, Sent
from proxy.groups.pauses import MOST_PAUSES, Heeded, Pause, PauseOrder, Pauses, Verb, decode
from proxy.groups.pausing import Pausing

PAUSE, RESUME = Verb.PAUSE, Verb.RESUME
ASKER = "amq.rabbitmq.reply-to.g1h2"


def after(*orders: tuple[Verb, str]) -> Pauses:
    pauses = Pauses()
    for number, (verb, shard) in enumerate(orders):
        assert pauses.take(PauseOrder(verb, "orders", float(number), shard), f"user {number}") == ""
    return pauses


@pytest.mark.parametrize(
    ("orders", "paused"),
    [
        ([], ""),
        ([(PAUSE, "")], "stu"),
        ([(PAUSE, ""), (RESUME, "")], ""),
        ([(PAUSE, "s"), (PAUSE, "t")], "st"),
        ([(PAUSE, "s"), (RESUME, "s")], ""),
        ([(RESUME, "s"), (PAUSE, "")], "stu"),
        ([(PAUSE, ""), (RESUME, "s")], "tu"),
        ([(PAUSE, ""), (RESUME, "s"), (PAUSE, "s")], "stu"),
        ([(PAUSE, ""), (RESUME, "s"), (PAUSE, "")], "stu"),
        ([(PAUSE, "s"), (RESUME, "")], ""),
        ([(PAUSE, "s"), (PAUSE, ""), (RESUME, "s")], "tu"),
    ],
)
def test_the_last_order_counts_that_names_a_shard_or_all(orders: list[tuple[Verb, str]], paused: str) -> None:
    pauses = after(*orders)
    assert "".join(shard for shard in "stu" if pauses.of(shard) is not None) == paused


def test_a_pause_tells_who_has_ordered_it_and_when() -> None:
    pauses = after((PAUSE, ""), (PAUSE, "s"))
    assert pauses.of("s") == Pause("user 1", 1.0)
    assert str(pauses.of("t")) == "paused by user 0 since 1970-01-01T00:00:00Z"


def test_pauses_of_so_many_shards_are_known_and_all_can_be_resumed() -> None:
    pauses = after(*((PAUSE, f"s{number}") for number in range(MOST_PAUSES)))
    order = PauseOrder(PAUSE, "orders", 0.0, "one more")
    assert pauses.take(order, "anna") == f"the pauses of {MOST_PAUSES} shards are known, which are the most"
    assert pauses.of("one more") is None
    assert pauses.take(PauseOrder(PAUSE, "orders", 9.0, "s0"), "anna") == ""
    assert pauses.of("s0") == Pause("anna", 9.0)
    assert pauses.take(PauseOrder(RESUME, "orders", 0.0), "anna") == ""
    assert pauses.of("s0") is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "Input data was truncated: b''"),
        (b"\xff", r"JSON is malformed: invalid character .*: b'\xff'"),
        (b'{"verb":"stop","group":"o","at":1}', "Invalid enum value 'stop' - at `$.verb`"),
        (b'{"verb":"pause","at":1}', "missing required field `group`"),
        (b'{"verb":"pause","group":"o","at":-1}', "at `$.at`"),
        (b'{"verb":"pause","group":"o","at":1,"shard":7}', "at `$.shard`"),
        (b'{"verb":"pause","group":"o","at":1,"until":7}', "unknown field `until`"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
)
def test_a_message_that_is_no_order_is_told_with_its_field_and_value(body: bytes, fault: str) -> None:
    with pytest.raises(OrderError) as told:
        decode(body)
    if len(body) <= MAX_BYTES:
        assert str(told.value).endswith(f": {body!r}")
    assert fault.split(".*")[0].replace("\\", "") in str(told.value).replace("\\", "")


class Judge(Pausing):
    """The judge of a group with two shards, which notes what it answers and how often pauses have changed."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Heeded]] = []
        self.changes = 0
        self.group = Group("own", "node-a", 0.0)
        self.group.follow(["s", "t"], 0.0, 0.0)
        super().__init__("orders", self.group, Operators({"anna"}, "group"), "group", self._note, self._count)

    def _note(self, queue: str, body: bytes) -> None:
        self.answers.append((queue, msgspec.json.decode(body, type=Heeded)))

    def _count(self) -> None:
        self.changes += 1

    def sent(self, verb: Verb, shard: str = "", *, user: str = "anna", group: str = "orders", to: str = ASKER) -> None:
        self.taken(Sent(user, msgspec.json.encode(PauseOrder(verb, group, 1.0, shard)), to))

    @property
    def why(self) -> str:
        return self.answers[-1][1].why


def test_orders_of_the_past_are_taken_without_an_answer_and_count_once_all_are_read() -> None:
    judge = Judge()
    judge.begun()
    judge.sent(PAUSE)
    judge.sent(RESUME, "t")
    assert (judge.group.paused_shards, judge.answers, judge.changes) == ([], [], 0)
    judge.known()
    assert (judge.group.paused_shards, judge.orders, judge.changes) == (["s"], 0, 1)
    # They are read again after each loss of the connection, and until then what is paused stays so.
    judge.begun()
    judge.sent(PAUSE)
    assert judge.group.paused_shards == ["s"]
    judge.known()
    assert judge.group.paused_shards == ["s", "t"]


def test_an_order_counts_at_once_and_is_answered() -> None:
    judge = Judge()
    judge.begun()
    judge.known()
    judge.sent(PAUSE, "t")
    assert judge.group.paused_shards == ["t"]
    assert judge.answers == [(ASKER, Heeded("node-a", "", 1, ("t",), 0))]
    assert judge.orders == 1
    judge.sent(PAUSE, "u")
    assert judge.why == "kept, and counts once 'u' is a shard of the group, which it is not here"
    # A queue that is no asker's own gets nothing.
    judge.sent(RESUME, to="s")
    judge.sent(RESUME, to="")
    assert len(judge.answers) == 2
    assert judge.group.paused_shards == []


def test_what_does_not_count_changes_nothing_and_its_operator_is_told_why(caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge()
    judge.begun()
    judge.known()
    judge.sent(PAUSE)
    for _ in range(2):
        before = len(judge.answers)
        judge.sent(RESUME, user="bob")
        assert len(judge.answers) == before, "a stranger gets no answer"
        judge.sent(RESUME, group="orders/audit")
        assert judge.why == "group: 'orders/audit' is another group"
        judge.taken(Sent("anna", b"{", ASKER))
        assert judge.why == "Input data was truncated: b'{'"
    assert judge.group.paused_shards == ["s", "t"]
    assert judge.orders == 1
    told = [record.getMessage() for record in caplog.records]
    assert told[1:] == [
        "group: an order of 'bob', whom groups_operators does not name",
        "group: a message of the operator 'anna' is no order: group: 'orders/audit' is another group",
        "group: a message of the operator 'anna' is no order: Input data was truncated: b'{'",
    ]
