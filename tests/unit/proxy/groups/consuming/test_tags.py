"""The delivery tags of a channel, against a model that keeps every delivery in one list."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from proxy.groups.consuming import tags as tags_module
from proxy.groups.consuming.tags import Delivery, Numbering, TaggedSource
from proxy.groups.model import Link, Member
from proxy.wire.frames import BASIC_NACK, BASIC_REJECT


def sources(numbering: Numbering, count: int) -> list[TaggedSource]:
    member = Member("m", "/", "x", 1, b"c")
    return [numbering.own, *(TaggedSource(1000 + n, numbering, Link(member, f"q{n}")) for n in range(count))]


MOST = 1 << 30


class World:
    """A numbering, a list of all deliveries without an answer, and what the broker has unacked on each channel."""

    def __init__(self) -> None:
        self.numbering = Numbering(1)
        self.sources = sources(self.numbering, 3)
        self.tags = dict.fromkeys(self.sources, 0)
        self.open: dict[int, tuple[TaggedSource, int]] = {}
        self.unacked: dict[TaggedSource, set[int]] = {source: set() for source in self.sources}
        self.returning: dict[tuple[TaggedSource, int], int] = {}
        """The deliveries that the client has returned and the broker has yet to hear of, with the method."""

    def deliver(self, source: TaggedSource, *, settled: bool) -> None:
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

    def answer(self, number: int, multiple: bool, requeue: int) -> None:
        """The client answers to a delivery, or to all up to it; `requeue` is the method that returns it, or 0."""
        numbering = self.numbering
        if number not in self.open and not (multiple and not number and self.open):
            # Up to the base it is the broker that refuses.
            assert number <= numbering.base or numbering.settle_one(number) is None
            return
        covered = [n for n in self.open if n == number or (multiple and (n < number or not number))]
        wanted = {self.open.pop(n) for n in covered}
        if not multiple:
            self.single(number, requeue)
        elif not numbering.started or 0 < number <= numbering.base:
            numbering.settle_all_own(number or numbering.last)
            assert self.settle(numbering.own, number, True) == wanted
        else:
            got: set[tuple[TaggedSource, int]] = set()
            for source, tag, many, method in numbering.settle_all(number or numbering.last, MOST, []):
                if method:
                    assert self.returning.pop((source, tag)) == method
                    assert self.settle(source, tag, many) == {(source, tag)}
                else:
                    got |= {(source, each) for _, each in self.settle(source, tag, many)}
            assert got == wanted

    def single(self, number: int, requeue: int) -> None:
        numbering = self.numbering
        if not numbering.started or number <= numbering.base:
            numbering.settle_own(number)
            assert self.settle(numbering.own, number, False)
            return
        delivery = numbering.settle_one(number)
        assert delivery is not None
        source, tag = delivery.source, delivery.tag
        if requeue and source.link is not None:
            source.keep(tag, requeue)
            self.returning[source, tag] = requeue
        else:
            assert self.settle(source, tag, False) == {(source, tag)}

    def hand_back(self, source: TaggedSource, most: int) -> None:
        """A moment has passed: what waits for none before it goes back."""
        taken = source.take_returned(most)
        assert len(taken) <= most
        assert taken == sorted(taken)
        for tag, method in taken:
            assert self.returning.pop((source, tag)) == method
            assert self.settle(source, tag, False) == {(source, tag)}

    def settle(self, source: TaggedSource, tag: int, multiple: bool) -> set[tuple[TaggedSource, int]]:
        """The broker takes an answer, as RabbitMQ does: one to a tag that is not unacked closes the channel."""
        there = self.unacked[source]
        assert tag in there or (multiple and not tag)
        covered = {each for each in there if each == tag or (multiple and (each < tag or not tag))}
        there -= covered
        return {(source, each) for each in covered}

    def check(self) -> None:
        if self.numbering.started:
            assert {n for n in self.open if n > self.numbering.base} == set(self.numbering.unacked)
        for source, there in self.unacked.items():
            held = sorted(tag for owner, tag in self.open.values() if owner is source)
            waits = sorted(tag for owner, tag in self.returning if owner is source)
            assert sorted(each >> 1 for each in source.returning) == waits
            assert source.may_return == bool(waits and (not held or waits[0] < held[0]))
            if source.link is not None:
                assert [each.tag for each in in_source(source)] == held
                assert source.link.unacked == len(held) == len(there) - len(waits)


def in_source(source: TaggedSource) -> Iterator[Delivery]:
    """Yield the unsettled deliveries of a source, the oldest first, and check that they know each other both ways."""
    each, before = source.first, None
    while each is not None:
        assert each.before_in_source == (before.number if before is not None else 0)
        yield each
        before, each = each, each.after_in_source
    assert source.final is before


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
            world.answer(number, multiple, data.draw(st.sampled_from([0, BASIC_NACK, BASIC_REJECT])))
        if data.draw(st.integers(0, 4)) == 0:
            world.hand_back(data.draw(st.sampled_from(world.sources)), data.draw(st.integers(0, 3)))
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
    # A message that the broker delivers again has a new tag: an answer to all of it names no old one.
    assert numbering.settle_all(numbering.last, MOST, []) == [(one, 3, True, 0)]


def test_the_oldest_delivery_of_each_channel_is_known() -> None:
    numbering = Numbering(1)
    numbering.start()
    own, one, _ = sources(numbering, 2)
    for source, tag, at in ((one, 1, 5.0), (own, 1, 6.0), (one, 2, 7.0)):
        numbering.add(source, tag, at)
    assert [source.first.at for source in (one, own) if source.first is not None] == [5.0, 6.0]
    numbering.settle_one(1)
    assert [source.first.at for source in (one, own) if source.first is not None] == [7.0, 6.0]
    numbering.settle_one(3)
    assert one.first is None


def test_acks_out_of_order_take_memory_for_so_many_only() -> None:
    """One that is never acked in front of them; without members it is only the joining that needs to know."""
    numbering = Numbering(1)
    most = tags_module.MOST_UNACKED
    for tag in range(1, most + 3):
        numbering.pass_delivery(tag, settled=tag > 1)
    assert numbering.unsure
    assert len(numbering._above) <= most
