"""The judge is shown each kind of wrong, planted in a run where all else is right, and each kind of exemption."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.history import Change, Deletion, Flap, Hang, History, Limits, Span
from tests.chaos.oracle import STANDSTILL, UNANSWERED, Copy, Fleet, Note, Told, Verdict, judge
from tests.chaos.plant import PLANTED, RETURNED, planted, returned
from tests.integration.rings import owner

QUEUES = ("q1", "q2", "q3")
LIMITS = Limits(grace=2.0, stale_after=10.0, waits=2.0)
FLEET = Fleet(
    "orders", native=frozenset({"native"}), order_of_confirmed=frozenset({"single"}), lasting=frozenset({"p"})
)
KEYS = 7


def history() -> History:
    return History(dict.fromkeys(QUEUES, 1))


def note(number: int, sent: float, outcome: Told = Told.CONFIRMED, publisher: str = "p", channel: str = "1") -> Note:
    return Note(publisher, channel, number, f"key {number % KEYS}", sent, sent + 0.1, outcome)


def copy(of: Note, queue: str | None = None, queues: Sequence[str] = QUEUES) -> Copy:
    """Return the copy of a message, where the ring of these queues puts it unless told where."""
    native = of.publisher in FLEET.native
    where = queue or owner(queues, of.key)
    return Copy(where, of.publisher, of.number, "" if native else "orders", "" if native else of.key)


def elsewhere(of: Note) -> str:
    return next(queue for queue in QUEUES if queue != owner(QUEUES, of.key))


NOTES = [note(number, 100 + number / 10) for number in range(100)]
COPIES = [copy(one) for one in NOTES]


def judged(notes: Sequence[Note], copies: Sequence[Copy], of: History | None = None) -> Verdict:
    return judge(notes, copies, of or history(), LIMITS, FLEET)


def test_a_run_without_a_fault() -> None:
    verdict = judged(NOTES, COPIES)
    assert verdict.faults == []
    assert (verdict.routed, verdict.by_one_ring, verdict.in_order) == (100, 100, 100 - KEYS)
    assert verdict.outcomes == {"p": {Told.CONFIRMED: 100}}


@pytest.mark.parametrize("at", [0, 50, 99])
def test_a_planted_loss(at: int) -> None:
    (fault,) = judged(NOTES, COPIES[:at] + COPIES[at + 1 :]).faults
    assert fault.startswith(f"p {at} (")
    assert fault.endswith("was confirmed and is in no queue")


def test_a_planted_misroute() -> None:
    stray = elsewhere(NOTES[40])
    (fault,) = judged(NOTES, [*COPIES[:40], copy(NOTES[40], stray), *COPIES[41:]]).faults
    assert fault.startswith("p 40 (")
    assert fault.endswith(f"is in {stray}, and not in ['{COPIES[40].queue}']")


def test_a_planted_duplicate() -> None:
    (fault,) = judged(NOTES, [*COPIES, COPIES[40]]).faults
    assert fault.startswith("p 40 (")
    assert fault.endswith("is 2 times in queues")


def test_two_messages_planted_in_the_wrong_order() -> None:
    swapped = list(COPIES)
    swapped[40], swapped[40 + KEYS] = swapped[40 + KEYS], swapped[40]
    (fault,) = judged(NOTES, swapped).faults
    assert fault.startswith("p 40 (")
    assert " is behind p 47 (" in fault


def test_a_message_that_no_ring_routed() -> None:
    passed = COPIES[40]._replace(exchange="", key="")
    (fault,) = judged(NOTES, [*COPIES[:40], passed, *COPIES[41:]]).faults
    assert fault.endswith("says '', '': no ring routed it")


def test_a_message_that_nobody_published() -> None:
    (fault,) = judged(NOTES, [*COPIES, Copy("q1", "p", 4711, "orders", "key 0")]).faults
    assert fault == "p 4711 is in q1, and nobody says it was published"


@pytest.mark.parametrize("outcome", [told for told in Told if told != Told.CONFIRMED])
def test_what_was_not_confirmed_need_not_be_there_and_may_be_but_for_what_was_refused(outcome: Told) -> None:
    other = note(100, 110, outcome)
    assert judged([*NOTES, other], COPIES).faults == []
    faults = judged([*NOTES, other], [*COPIES, copy(other)]).faults
    assert len(faults) == (outcome == Told.REFUSED)


def test_of_what_was_told_nothing_there_may_be_two_in_the_right_queue() -> None:
    other = note(100, 110, Told.UNKNOWN)
    verdict = judged([*NOTES, other], [*COPIES, copy(other), copy(other)])
    assert (verdict.faults, verdict.duplicates) == ([], 1)
    assert judged([*NOTES, other], [*COPIES, copy(other), copy(other, elsewhere(other))]).faults


def moving() -> Note:
    """A message whose queue is another once q1 has gone."""
    return next(one for one in NOTES if owner(QUEUES, one.key) == "q1")


@pytest.mark.parametrize(
    ("sent", "old", "new"), [(50.0, True, False), (100.5, True, True), (102.9, True, True), (103.5, False, True)]
)
def test_after_a_change_the_old_ring_counts_for_the_grace_time(sent: float, old: bool, new: bool) -> None:
    past = history()
    past.changes.append(Change(100.0, 101.0, {"q2": 1, "q3": 1}))
    one = moving()._replace(sent=sent, told=sent + 0.1)
    assert (judged([one], [copy(one)], past).faults == []) == old
    assert (judged([one], [copy(one, queues=QUEUES[1:])], past).faults == []) == new


@pytest.mark.parametrize(("sent", "right"), [(107.9, True), (108.1, False)])
def test_the_grace_time_begins_once_bindings_can_be_read(sent: float, right: bool) -> None:
    past = history()
    past.changes.append(Change(100.0, 101.0, {"q2": 1, "q3": 1}))
    past.impaired.append(Span(102.0, 106.0))
    one = moving()._replace(sent=sent, told=sent + 0.1)
    assert (judged([one], [copy(one)], past).faults == []) == right


@pytest.mark.parametrize(("sent", "right"), [(109.9, True), (110.1, False), (119.8, False), (119.95, True)])
def test_nothing_is_routed_once_every_ring_is_too_old(sent: float, right: bool) -> None:
    past = history()
    past.down.append(Span(100.0, 120.0))
    one = moving()._replace(sent=sent, told=sent + 0.1, publisher="refusing")
    verdict = judged([one], [copy(one)], past)
    assert (verdict.faults == []) == right
    assert verdict.stale_for == 10
    assert judged([one._replace(publisher="native")], [], past).faults != []
    # A sidecar that goes on by such a ring is judged otherwise.
    lasting = one._replace(publisher="p")
    assert judged([lasting], [copy(lasting)], past).faults == []


@pytest.mark.parametrize(
    ("queue", "at", "exempt"),
    [
        ("q1", 0.05, True),
        ("q1", 0.55, True),
        ("q1", 0.7, False),
        ("q2", 0.05, False),
        # Sent after it: such a message comes back.
        ("q1", -0.05, True),
        ("q1", -0.07, False),
        ("q1", -0.4, False),
    ],
)
def test_confirmed_messages_may_go_with_their_queue_and_no_others(queue: str, at: float, exempt: bool) -> None:
    one, past = moving(), history()
    past.deletions.append(Deletion(queue, one.sent + at, one.sent + at + 0.01))
    verdict = judged([one], [], past)
    assert (verdict.faults == []) == exempt
    assert verdict.exempt.total() == exempt


@pytest.mark.parametrize(("unread_from", "exempt"), [(float("inf"), False), (100.9, False), (100.4, True)])
def test_confirmed_messages_may_go_with_a_queue_that_nobody_consumed(unread_from: float, exempt: bool) -> None:
    """However long the queue lived: nobody took out of it what came meanwhile."""
    one, past = moving()._replace(sent=99.9, told=100.0), history()
    past.deletions.append(Deletion("q1", 105.0, 105.1, unread_from))
    assert (judged([one], [], past).faults == []) == exempt


def test_a_native_message_is_judged_for_loss_and_not_for_its_queue() -> None:
    native = note(1, 100, publisher="native")
    assert judged([native], [copy(native, elsewhere(native))]).faults == []
    assert len(judged([native], []).faults) == 1
    past = history()
    past.deletions.append(Deletion("q2", 100, 100.05))
    assert judged([native], [], past).faults == []


def test_messages_published_again_after_a_return_may_be_there_twice() -> None:
    one, past = moving(), history()
    past.deletions.append(Deletion("q1", one.sent, one.sent + 0.01))
    past.changes.append(Change(one.sent, one.sent + 0.01, {"q2": 1, "q3": 1}))
    verdict = judged([one], [copy(one), copy(one, queues=QUEUES[1:])], past)
    assert (verdict.faults, verdict.duplicates) == ([], 1)


def pair(**changes: Any) -> tuple[list[Note], list[Copy]]:
    """Return two messages of a key whose queue goes, and their copies, the later one before the earlier one."""
    first = moving()._replace(**changes)
    second = first._replace(number=KEYS * 20, sent=100.3, told=100.4)
    return [first, second], [copy(second), copy(first)]


def q1_goes(*, back: float | None = None, deleted: bool = True) -> History:
    past = history()
    past.changes.append(Change(100.3, 100.35, {"q2": 1, "q3": 1}))
    if deleted:
        past.deletions.append(Deletion("q1", 100.3, 100.35))
    if back is not None:
        past.changes.append(Change(back, back + 0.01, {"q1": 1, "q2": 1, "q3": 1}))
    return past


def test_order_is_not_judged_across_channels() -> None:
    (first, second), there = pair()
    assert len(judged([first, second], there).faults) == 1
    assert judged([first, second._replace(channel="2")], there).faults == []


def test_a_ring_that_changes_is_no_excuse_for_a_sidecar() -> None:
    notes, there = pair()
    assert len(judged(notes, there, q1_goes(deleted=False)).faults) == 1
    assert len(judged(notes, there, q1_goes()).faults) == 1
    assert len(judged(notes, there, q1_goes(back=100.5)).faults) == 1


@pytest.mark.parametrize("changes", [{"outcome": Told.UNKNOWN}, {"publisher": "native"}])
def test_a_ring_that_changes_excuses_publishes_at_the_broker_and_those_without_a_confirm(
    changes: dict[str, Any],
) -> None:
    verdict = judged(*pair(**changes), q1_goes())
    assert (verdict.faults, verdict.moved) == ([], 1)


def test_a_queue_that_is_deleted_and_made_anew_between_two_messages_is_an_excuse() -> None:
    verdict = judged(*pair(), q1_goes(back=100.37))
    assert (verdict.faults, verdict.moved) == ([], 1)
    flapping = history()
    flapping.flaps.append(Flap("q1", 100.2, 100.4))
    verdict = judged(*pair(), flapping)
    assert (verdict.faults, verdict.moved) == ([], 1)


def test_single_requests_keep_the_order_of_what_was_confirmed_only() -> None:
    first, second = (note(number, 100 + number, publisher="single") for number in (0, KEYS))
    assert len(judged([first, second], [copy(second), copy(first)]).faults) == 1
    late = first._replace(outcome=Told.UNKNOWN)
    assert judged([late, second], [copy(second), copy(late)]).faults == []


HANG = Hang(101.0, 109.0, ("q1",))


def while_it_hung(*, standing: float = 0.0) -> list[Note]:
    """Messages all the time, but for so long from 103 on for the queues that stay."""
    return [
        one
        for one in (note(number, 98 + number / 10) for number in range(120))
        if owner(QUEUES, one.key) == "q1" or not 103 <= one.told <= 103 + standing
    ]


@pytest.mark.parametrize(("standing", "right"), [(0.0, True), (STANDSTILL - 0.8, True), (STANDSTILL, False)])
def test_what_goes_to_queues_that_stay_is_confirmed_while_the_management_api_hangs(
    standing: float, right: bool
) -> None:
    past, notes = history(), while_it_hung(standing=standing)
    assert judged(notes, [copy(one) for one in notes], past).faults == []
    past.hangs.append(HANG)
    verdict = judged(notes, [copy(one) for one in notes], past)
    assert verdict.standstills["p"] == pytest.approx(standing, abs=0.8)
    assert (verdict.faults == []) == right
    if not right:
        assert verdict.faults[0].startswith("p was confirmed nothing for the queues that stayed for 3.")


@pytest.mark.parametrize("natively", [True, False])
def test_a_time_in_which_native_publishers_stood_still_too_is_not_the_sidecars(natively: bool) -> None:
    past = history()
    past.hangs.append(HANG)
    notes = while_it_hung(standing=STANDSTILL)
    native = [one._replace(publisher="native", number=one.number + 1000) for one in while_it_hung()]
    if natively:
        native = [one for one in native if not 103 <= one.told <= 103 + STANDSTILL]
    faults = judged([*notes, *native], [copy(one) for one in (*notes, *native)], past).faults
    assert (faults == []) is natively


@pytest.mark.parametrize("outcome", [told for told in Told if told != Told.CONFIRMED])
def test_answers_that_confirm_nothing_are_a_standstill_too(outcome: Told) -> None:
    past = history()
    past.hangs.append(HANG)
    notes = [one._replace(outcome=outcome) if one.sent > 105 else one for one in while_it_hung()]
    copies = [copy(one) for one in notes if one.outcome == Told.CONFIRMED]
    (fault,) = judged(notes, copies, past).faults
    assert "p was confirmed nothing" in fault


def test_who_was_not_well_before_a_hang_is_not_judged_by_it_and_one_must_be() -> None:
    past = history()
    past.hangs.append(HANG)
    notes = [one for one in while_it_hung() if one.told > HANG.begin]
    (fault,) = judged(notes, [copy(one) for one in notes], past).faults
    assert fault.startswith("nobody was well as the management API began to hang")
    # Nor is who stands still by an old ring, as it should.
    notes = [one._replace(publisher="refusing") for one in while_it_hung(standing=STANDSTILL)]
    (fault,) = judged(notes, [copy(one) for one in notes], past).faults
    assert fault.startswith("nobody was well")


FLAP = Flap("q1", 103.0, 106.0)


def flapping() -> History:
    """Give q1 deleted at 103.5, made anew at 104.5, deleted at 104.6, and made anew once more at 105.5."""
    past, left = history(), {"q2": 1, "q3": 1}
    for begin, weights in ((103.5, left), (104.5, past.weights), (104.6, left), (105.5, past.weights)):
        past.changes.append(Change(begin, begin + 0.02, weights))
    past.deletions += [Deletion("q1", 103.5, 103.52), Deletion("q1", 104.6, 104.62, 104.5)]
    past.flaps.append(FLAP)
    return past


def came_back(*, key: str, sent: float = 104.7, took: float = 0.3, publisher: str = "p") -> list[Note]:
    """Return the notes of a run, the last one of a message of that key, which came back."""
    return [*NOTES, Note(publisher, "1", 1000, key, sent, sent + took, Told.RETURNED)]


def test_a_message_of_a_queue_that_flaps_may_not_come_back() -> None:
    assert judged(NOTES, COPIES, flapping()).faults == []
    key = moving().key
    (fault,) = judged(came_back(key=key), COPIES, flapping()).faults
    assert fault.startswith("p 1000 (")
    assert fault.endswith("came back while q1 flapped, and other queues stood")


@pytest.mark.parametrize(
    "other",
    [
        came_back(key=moving().key, sent=102.9),  # before it flapped
        came_back(key=moving().key, sent=106.1),  # and after it
        came_back(key=moving().key, took=2.0),  # answered when no reading had come in time
        came_back(key=moving().key, publisher="native"),
        came_back(key=next(one.key for one in NOTES if owner(QUEUES, one.key) == "q2")),
        [*NOTES, came_back(key=moving().key)[-1]._replace(outcome=Told.NACKED)],  # which may be the broker's own
    ],
)
def test_other_messages_may_come_back_while_a_queue_flaps(other: list[Note]) -> None:
    assert judged(other, COPIES, flapping()).faults == []


@pytest.mark.parametrize(("span", "right"), [(Span(103.9, 104.8), True), (Span(105.1, 105.5), False)])
def test_a_message_may_come_back_while_bindings_cannot_be_read(span: Span, right: bool) -> None:
    past = flapping()
    past.impaired.append(span)
    assert (judged(came_back(key=moving().key), COPIES, past).faults == []) == right


def test_a_flap_of_which_no_message_is_judged_says_nothing() -> None:
    assert judged(NOTES, COPIES, flapping()).flapped > 0
    past = flapping()
    past.impaired.append(Span(100.0, 110.0))
    (fault,) = judged(NOTES, COPIES, past).faults
    assert fault == "no message was judged while q1 flapped from 103.000: this says nothing"


def given_up(*, key: str, sent: float = 104.7) -> list[Note]:
    """Return the notes of a run, the last one of a message of that key, which nobody answered."""
    return [*NOTES, Note("p", "1", 1000, key, sent, sent + UNANSWERED, Told.UNKNOWN)]


def test_a_message_is_left_without_an_answer_only_where_the_broker_may() -> None:
    notes = given_up(key=moving().key)
    verdict = judged(notes, COPIES)
    assert (verdict.faults, verdict.unanswered) == ([], {"p": notes[-1].told})
    (fault,) = judge(notes, COPIES, history(), LIMITS, replace(FLEET, answered=True)).faults
    assert fault.startswith("p 1000 (")
    assert fault.endswith("was left without an answer")


@pytest.mark.parametrize("other", [{"publisher": "native"}, {"told": 104.7 + UNANSWERED - 0.1}])
def test_others_may_have_no_answer(other: dict[str, Any]) -> None:
    """A native publisher's broker owes the answer, and a lost connection ends a wait sooner."""
    (*notes, last) = given_up(key=moving().key)
    fleet = replace(FLEET, answered=True)
    assert judge([*notes, last._replace(**other)], COPIES, history(), LIMITS, fleet).faults == []


def test_a_message_written_down_twice() -> None:
    assert len(judged([NOTES[0], NOTES[0]], COPIES[:1]).faults) == 1


def test_what_is_planted_in_a_run_is_found() -> None:
    copies = planted(NOTES, COPIES, history(), LIMITS, FLEET)
    faults = judged(NOTES, copies).faults
    assert len(copies) == len(COPIES)
    for words in PLANTED:
        assert sum(words in fault for fault in faults) == 1


def test_a_return_that_is_planted_in_a_run_is_found() -> None:
    past = flapping()
    notes = returned(NOTES, past, LIMITS, FLEET)
    faults = judged(notes, planted(NOTES, COPIES, past, LIMITS, FLEET), past).faults
    assert len(faults) == len(PLANTED) + 1
    for words in (*PLANTED, RETURNED):
        assert sum(words in fault for fault in faults) == 1
    assert returned(NOTES, history(), LIMITS, FLEET) == NOTES
