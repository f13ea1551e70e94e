"""The judge of work in series is shown each kind of wrong, planted where all else is right, and each exemption."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.groups import plant
from tests.chaos.groups.history import (
    Begin,
    DeadLetter,
    Delivery,
    End,
    History,
    Holder,
    How,
    Life,
    Settlement,
    Stall,
    Trouble,
)
from tests.chaos.groups.judge import Limits, judge
from tests.chaos.oracle import Note, Told

A, B = Holder("a", 1), Holder("b", 1)
FOREVER = float("inf")
LIMITS = Limits(("orders.1",), lambda _: "orders.1", "orders", 5.0, balanced=False, in_series=True)
LIMITED = replace(LIMITS, tries=3)
COUNT = 20


class Run:
    """A history that is put together one try after the other."""

    def __init__(self, told: Told = Told.CONFIRMED) -> None:
        notes = [
            Note("p", "1", number, f"key {number % 2}", 100 + number / 10, 100.05 + number / 10, told)
            for number in range(COUNT)
        ]
        self.history = History(notes, lives=[Life(holder, 99.0, FOREVER, None) for holder in (A, B)])

    def tried(
        self,
        number: int,
        holder: Holder = A,
        *,
        at: float | None = None,
        lasts: float = 0.01,
        how: How | None = How.ACK,
        attempt: int = 1,
        redelivered: bool = False,
    ) -> "Run":
        """Add one try; with `how` None the work does not end."""
        note, history = self.history.notes[number], self.history
        at = note.sent + 0.06 if at is None else at
        tag = len(history.deliveries) + 1
        history.deliveries.append(Delivery(at, holder, tag, redelivered, "orders", note.key, "p", number))
        history.begins.append(Begin(at + 0.001, holder, tag, attempt))
        if how is not None:
            history.settlements.append(Settlement(at + 0.001 + lasts, holder, tag, how))
        return self

    def all_but(self, *numbers: int) -> "Run":
        """Add one try of each message but these, in which it is completed."""
        for number in range(COUNT):
            if number not in numbers:
                self.tried(number)
        return self

    def faults(self, limits: Limits = LIMITS) -> list[str]:
        return judge(self.history, limits).faults

    def failed(self, times: int, number: int = 4) -> "Run":
        """Add so many tries of one message, each of which fails."""
        for attempt in range(1, times + 1):
            at = self.history.notes[number].sent + 0.04 * attempt
            self.tried(number, at=at, how=How.NACK, attempt=attempt, redelivered=attempt > 1)
        return self

    def dead(self, number: int = 4, attempt: int = 3, key: str = "key 0") -> "Run":
        self.history.dead_letters = [*self.history.dead_letters, DeadLetter("p", number, key, attempt)]
        return self


def test_a_run_without_a_fault() -> None:
    verdict = judge(Run().all_but().history, LIMITS)
    worked = verdict.worked
    assert verdict.faults == []
    assert (worked.tries, worked.failed, worked.completed, worked.in_order, worked.close) == (20, 0, 20, 18, 0)


def test_planted_work_on_two_messages_of_a_key() -> None:
    run = Run().all_but(4).tried(4, lasts=0.15)  # message 6 of that key is begun 0.2 s after it is
    assert run.faults() == []
    (fault,) = Run().all_but(4).tried(4, lasts=0.205).faults()
    assert fault.startswith("p 6 (")
    assert "was begun by a (connection 1) at 100.661 while a (connection 1) worked on p 4 of the same key" in fault


def test_work_on_another_key_goes_on_beside_it() -> None:
    assert Run().all_but(4).tried(4, lasts=0.12).faults() == []  # message 5 is begun 0.1 s after it is


def test_planted_work_of_two_members_on_one_key() -> None:
    run = Run().all_but(4, 6).tried(4, B, lasts=0.205).tried(6)
    assert any("while b (connection 1) worked on p 4 of the same key" in fault for fault in run.faults())


def test_the_work_of_a_member_ends_as_it_is_killed() -> None:
    def killed(at: float) -> Run:
        run = Run().all_but(4, 6).tried(4, B, how=None).tried(4, at=100.6, redelivered=True).tried(6, at=100.7)
        run.history.lives[1] = Life(B, 99.0, at, End.KILLED)
        return run

    assert killed(100.55).faults() == []
    assert judge(killed(100.55).history, LIMITS).worked.taken == {"connection ended": 1}
    assert any("p 4 of the same key" in fault for fault in killed(100.65).faults())


def test_work_on_a_lost_connection_counts_until_the_fault_that_cost_it() -> None:
    def lost(begin: float) -> Run:
        run = Run().all_but(4, 6).tried(4, B, how=None).tried(4, at=100.6, redelivered=True).tried(6, at=100.7)
        run.history.lives[1] = Life(B, 99.0, 100.9, End.LOST)
        run.history.troubles.append(Trouble(begin, 100.9, frozenset("b")))
        return run

    assert lost(100.55).faults() == []
    assert any("p 4 of the same key" in fault for fault in lost(100.65).faults())


def test_work_that_is_not_acked_in_time_may_be_taken() -> None:
    def slow(after: float) -> Run:
        run = Run().all_but(*range(4, COUNT)).tried(4, B, how=None)
        run.history.notes = run.history.notes[:5]
        return run.tried(4, at=100.4 + after, redelivered=True)

    assert slow(4.2).faults() == []
    assert any("of the same key" in fault for fault in slow(3.8).faults())


def test_time_counts_from_when_the_message_may_have_come_to_the_sidecar() -> None:
    """In series a message waits there: message 4 came to B at its third second, and its shard moved at the fifth."""

    def waited(before: float) -> list[str]:
        run = Run().all_but(*range(4, COUNT))
        run.history.notes = run.history.notes[:5]
        run.history.deliveries[-1] = run.history.deliveries[-1]._replace(at=100.3)
        run.tried(4, at=103.5, how=None).tried(4, B, at=104.5 - before, redelivered=True)
        return run.faults()

    assert waited(0.0) == []
    assert any("of the same key" in fault for fault in waited(0.5))


@pytest.mark.parametrize(("window", "faults"), [(1, 1), (5, 0)])
def test_a_backlog_waits_in_its_queue(window: int, faults: int) -> None:
    """Message 4 was published 4.5 s before, and a window of one had room for it since 104.0 s alone."""
    run = Run().all_but(*range(2, COUNT)).tried(2, at=101.0).tried(3, at=104.0)
    run.history.notes = run.history.notes[:5]
    run.tried(4, at=104.1, how=None).tried(4, at=104.9, redelivered=True)
    found = [fault for fault in run.faults(replace(LIMITS, window=window)) if "of the same key" in fault]
    assert len(found) == faults


def test_a_member_that_was_stopped_may_read_late() -> None:
    run = Run().all_but(*range(4, COUNT))
    run.history.notes = [*run.history.notes[:4], run.history.notes[4]._replace(sent=105.0, told=105.1)]
    run.history.stalls.append(Stall("b", 100.3, 106.0))
    run.tried(4, at=105.8, lasts=0.5).tried(4, B, at=106.1, redelivered=True)
    assert judge(run.history, LIMITS).worked.taken == {"read late": 1}
    assert judge(run.history, LIMITS).worked.repeats == 1
    assert run.faults() == []
    run.history.stalls.clear()
    assert any("of the same key" in fault for fault in run.faults())


def test_planted_completions_out_of_order() -> None:
    """Message 4 was delivered and failed in time, and passed by message 6."""
    run = Run().all_but(4).tried(4, how=How.NACK).tried(4, at=100.68, attempt=2, redelivered=True)
    (fault,) = run.faults()
    assert fault.startswith("p 4 (")
    assert "was completed by a (connection 1) at 100.691, behind p 6 (" in fault
    in_time = Run().all_but(4).tried(4, how=How.NACK).tried(4, at=100.55, attempt=2, redelivered=True)
    assert in_time.faults() == []


def test_a_completion_again_is_a_repeat() -> None:
    run = Run().all_but().tried(4, B, at=100.75, redelivered=True)
    run.history.lives[0] = Life(A, 99.0, 100.72, End.LOST)
    run.history.troubles.append(Trouble(100.71, 100.72, frozenset("a")))
    run.history.deliveries = [one._replace(holder=B) if one.at > 100.72 else one for one in run.history.deliveries]
    run.history.begins = [one._replace(holder=B) if one.at > 100.72 else one for one in run.history.begins]
    run.history.settlements = [one._replace(holder=B) if one.at > 100.72 else one for one in run.history.settlements]
    verdict = judge(run.history, LIMITS)
    assert (verdict.faults, verdict.worked.repeats, verdict.worked.completed) == ([], 1, COUNT)


def test_a_planted_loss_behind_the_delivery() -> None:
    run = Run().all_but(18).tried(18, how=How.NACK)
    (fault,) = run.faults()
    assert fault.startswith("p 18 (")
    assert fault.endswith("was confirmed and neither completed nor dead-lettered")
    run = Run(Told.UNKNOWN).all_but(18).tried(18, how=How.NACK)
    assert run.faults() == []


def test_a_message_that_failed_as_often_as_it_may_is_dead_lettered() -> None:
    verdict = judge(Run().all_but(4).failed(3).dead().history, LIMITED)
    worked = verdict.worked
    assert verdict.faults == []
    assert (worked.dead, worked.dead_again, worked.completed, worked.failed) == (1, 0, COUNT - 1, 3)


@pytest.mark.parametrize("times", [0, 2])
def test_a_planted_early_dead_letter(times: int) -> None:
    (fault,) = Run().all_but(4).failed(times).dead().faults(LIMITED)[-1:]
    assert fault.startswith("p 4 (")
    assert fault.endswith(f"was dead-lettered, and members had failed it {times} times")


def test_a_planted_dead_letter_where_nothing_limits_the_tries() -> None:
    assert any("members had failed it 3 times" in fault for fault in Run().all_but(4).failed(3).dead().faults())


def test_a_planted_dead_letter_that_is_lost() -> None:
    (fault,) = Run().all_but(4).failed(3).faults(LIMITED)
    assert fault.endswith("was confirmed and neither completed nor dead-lettered")


def test_tries_that_a_move_made_the_sidecar_forget_are_no_fault() -> None:
    run = Run().all_but(4).tried(4, at=100.41, how=How.NACK, lasts=0.001)
    for attempt in (1, 2, 3):
        at = 100.41 + 0.03 * attempt
        run.tried(4, at=at, how=How.NACK, attempt=attempt, redelivered=True)
    assert run.dead().faults(LIMITED) == []


def test_what_is_given_up_has_its_place_in_the_order() -> None:
    run = Run().all_but(4).failed(2).tried(4, at=100.68, how=How.NACK, attempt=3, redelivered=True).dead()
    (fault,) = run.faults(LIMITED)
    assert "was given up by a (connection 1) at 100.691, behind p 6 (" in fault


def test_a_message_may_be_dead_lettered_again() -> None:
    """Its ack was lost, behind the publish to the dead-letter exchange."""
    worked = judge(Run().all_but(4).failed(3).dead().dead().history, LIMITED).worked
    assert (worked.dead, worked.dead_again) == (1, 1)


@pytest.mark.parametrize(("attempt", "key"), [(2, "key 0"), (3, "orders.1")])
def test_a_planted_dead_letter_that_shows_another_try_or_key(attempt: int, key: str) -> None:
    (fault,) = Run().all_but(4).failed(3).dead(attempt=attempt, key=key).faults(LIMITED)
    assert fault.endswith(f"was dead-lettered as try {attempt} with the key {key}")


def test_a_planted_dead_letter_of_nobody() -> None:
    assert Run().all_but().dead(77).faults(LIMITED) == ["p 77 is a dead letter, and nobody published it"]


def test_a_planted_try_beyond_the_limit() -> None:
    faults = Run().all_but(4).failed(4).dead().faults(LIMITED)
    assert any("p 4 (" in fault and fault.endswith("as try 4") for fault in faults)


def test_a_planted_try_with_too_high_a_number() -> None:
    (fault,) = Run().all_but(4).tried(4, attempt=2).faults()
    assert fault.endswith("as try 2, and members had failed it 0 times")


def test_planted_work_without_a_delivery() -> None:
    run = Run().all_but()
    run.history.begins.append(Begin(103.0, A, 77, 1))
    assert run.faults() == ["a (connection 1) began the delivery 77 at 103.000, and never got it"]


def test_a_planted_ack_without_work() -> None:
    run = Run().all_but()
    del run.history.begins[-1]
    (fault, _) = run.faults()
    assert fault.endswith("was settled at 101.971 and never begun")


def test_the_plants_of_a_run_are_seen() -> None:
    assert plant.unseen(Run().all_but().history, LIMITS) == []


@pytest.mark.parametrize("words", plant.PLANTS)
def test_a_judge_that_sees_nothing_is_found_out(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plants: dict[str, Callable[..., History]] = {words: lambda history, *_: history}
    monkeypatch.setattr(plant, "PLANTS", plants)
    (told,) = plant.unseen(Run().all_but().history, LIMITS)
    assert told.startswith(f"'{words}' was planted")


def test_what_workers_wrote_is_read() -> None:
    history = History()
    history.read("x", ["j 1.0 1\n", "d 1.5 1 7 0 orders key-1 p 1\n", "b 1.6 1 7 3\n", "n 1.7 1 7\n"], killed=None)
    holder = Holder("x", 1)
    assert history.begins == [Begin(1.6, holder, 7, 3)]
    assert history.settlements == [Settlement(1.7, holder, 7, How.NACK)]
