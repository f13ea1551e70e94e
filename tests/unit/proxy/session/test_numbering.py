"""The delivery tags of a channel, against a model that keeps every delivery in one list."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.member import Link, Member
from proxy.session import numbering as numbering_module
from proxy.session.numbering import Numbering, Source


def sources(numbering: Numbering, count: int) -> list[Source]:
    member = Member("m", "/", "x", 1, b"c")
    return [numbering.own, *(Source(1000 + n, numbering, Link(member, f"q{n}", 1000 + n, 0)) for n in range(count))]


class World:
    """A numbering, a list of all deliveries without an answer, and what the broker has unacked on each channel."""

    def __init__(self) -> None:
        self.numbering = Numbering(1)
        self.sources = sources(self.numbering, 3)
        self.tags = dict.fromkeys(self.sources, 0)
        self.open: dict[int, tuple[Source, int]] = {}
        self.unacked: dict[Source, set[int]] = {source: set() for source in self.sources}
        self.returning: set[tuple[Source, int]] = set()

    def deliver(self, source: Source, *, settled: bool) -> None:
        """The broker delivers on a channel; `settled` says that nobody acks it."""
        numbering = self.numbering
        self.tags[source] += 1
        tag = number = self.tags[source]
        if not numbering.started:
            numbering.pass_delivery(tag, settled=settled)
        elif settled:
            numbering.add_settled()
        else:
            number = numbering.add(source, tag, 0.0)
            if source.link is not None:
                source.link.unacked += 1
        if not settled:
            self.open[number] = source, tag
            self.unacked[source].add(tag)

    def answer(self, number: int, multiple: bool, requeue: bool) -> None:
        """The client answers to a delivery, or to all up to it; `requeue` returns them."""
        numbering = self.numbering
        if number not in self.open and not (multiple and not number and self.open):
            # Up to the base it is the broker that refuses.
            if numbering.started and number > numbering.base:
                assert numbering.settle(number, multiple, requeue) is None
            return
        covered = [n for n in self.open if n == number or (multiple and (n < number or not number))]
        wanted = {self.open.pop(n) for n in covered}
        answers = numbering.settle(number, multiple, requeue)
        assert answers is not None
        got = {(source, each) for source, tag, many in answers for each in self.settle(source, tag, many)}
        if requeue:
            # Those that wait already may be returned by the same answer, and new ones may have to wait.
            assert got <= wanted | self.returning
            self.returning = (self.returning | wanted) - got
        else:
            assert got == wanted
        for source, _, _ in answers:
            returned = numbering.take_returned(source)
            assert returned == sorted(returned)
            self.returning -= {(source, each) for tag in returned for each in self.settle(source, tag, False)}

    def settle(self, source: Source, tag: int, multiple: bool) -> set[int]:
        """The broker takes an answer, as RabbitMQ does: one to a tag that is not unacked closes the channel."""
        there = self.unacked[source]
        assert tag in there or (multiple and not tag)
        covered = {each for each in there if each == tag or (multiple and (each < tag or not tag))}
        there -= covered
        return covered

    def check(self) -> None:
        for source, tag in self.returning:
            assert source.link is not None
            assert any(owner is source and held < tag for owner, held in self.open.values())
        if self.numbering.started:
            assert {n for n in self.open if n > self.numbering.base} == set(self.numbering.unacked)
        for source, there in self.unacked.items():
            waits = sum(owner is source for owner, _ in self.returning)
            assert source.link is None or source.link.unacked == len(there) - waits


@given(st.data())
def test_each_answer_settles_exactly_the_deliveries_that_it_names(data: st.DataObject) -> None:
    """Deliveries with and without acks, on the client's channel before and after the first member has come."""
    world = World()
    early = data.draw(st.integers(0, 6))
    for step in range(data.draw(st.integers(0, 40))):
        numbering = world.numbering
        if step == early:
            numbering.start()
        if data.draw(st.booleans()):
            source = data.draw(st.sampled_from(world.sources)) if numbering.started else numbering.own
            world.deliver(source, settled=source is numbering.own and data.draw(st.integers(0, 2)) == 0)
        else:
            number, multiple = data.draw(st.integers(0, numbering.last + 1)), data.draw(st.booleans())
            world.answer(number, multiple, data.draw(st.booleans()))
        world.check()


def test_recover_forgets_everything_and_tells_whose_it_was() -> None:
    numbering = Numbering(1)
    numbering.pass_delivery(1, settled=False)
    numbering.start()
    own, one, other = sources(numbering, 2)
    assert [numbering.add(source, tag, 0.0) for source, tag in ((one, 1), (own, 2), (one, 2))] == [2, 3, 4]
    assert one.link is not None
    one.link.unacked = 2
    assert numbering.recover() == [one, own]
    assert other not in numbering.recover()
    assert (numbering.unacked, one.link.unacked) == ({}, 0)
    numbering.add(one, 3, 0.0)
    # What the broker delivers again has new tags: an answer to all of it names no old one.
    assert numbering.settle(0, True) == [(one, 3, True)]


def test_the_oldest_delivery_of_each_channel_is_known() -> None:
    numbering = Numbering(1)
    numbering.start()
    own, one, _ = sources(numbering, 2)
    for source, tag, at in ((one, 1, 5.0), (own, 1, 6.0), (one, 2, 7.0)):
        numbering.add(source, tag, at)
    assert numbering.oldest() == {one: 5.0, own: 6.0}
    numbering.settle(1, False)
    assert numbering.oldest() == {own: 6.0, one: 7.0}


def test_acks_out_of_order_take_memory_for_so_many_only() -> None:
    """One that is never acked in front of them; without members it is only the joining that needs to know."""
    numbering = Numbering(1)
    most = numbering_module.MOST_UNACKED
    for tag in range(1, most + 3):
        numbering.pass_delivery(tag, settled=tag > 1)
    assert numbering.unsure
    assert len(numbering._above) <= most
