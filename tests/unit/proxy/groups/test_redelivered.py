"""Redeliveries by shard: how many, and how often the same message."""

from proxy.groups.redelivered import MOST_KNOWN, POISON, RECENT, Redelivered

NOW = 1000.0


def test_the_message_that_came_again_most_often_counts_for_a_while() -> None:
    counted = Redelivered()
    for times in (1, 7, 3):
        counted.note(times, 0, NOW)
    assert (counted.count, counted.recent(NOW), counted.recent(NOW + RECENT)) == (3, 7, 7)
    assert counted.recent(NOW + RECENT + 1) == 0
    # It is gone by then, and others come again.
    counted.note(2, 0, NOW + RECENT + 1)
    assert (counted.count, counted.recent(NOW + RECENT + 1)) == (4, 2)


def test_where_the_queue_does_not_count_messages_are_told_apart_by_their_hashes() -> None:
    counted = Redelivered()
    for message in [1, 2, 1, 3, 1]:
        counted.note(0, message, NOW)
    assert (counted.count, counted.recent(NOW)) == (5, 3)


def test_messages_that_all_come_again_are_counted_in_little_memory() -> None:
    """A poison message among those that came first is found; of the others it is known that they came again."""
    counted = Redelivered()
    for _ in range(30):
        for message in range(10 * MOST_KNOWN):
            counted.note(0, message, NOW)
    assert len(counted._known) == MOST_KNOWN
    assert counted.recent(NOW) == 30
    # Later ones have their turn.
    for at in (NOW + RECENT + 1, NOW + RECENT + 2):
        counted.note(0, -1, at)
    assert (len(counted._known), counted.recent(NOW + RECENT + 2)) == (1, 2)


def test_a_message_that_goes_round_is_news_and_again_when_it_has_come_twice_as_often() -> None:
    counted, told = Redelivered(), []
    for times in range(1, 100):
        counted.note(times, 0, NOW)
        told.append(counted.news(NOW))
    assert [times for times in told if times] == [POISON, 2 * POISON, 4 * POISON]
    # Once it is gone, the next one is news as the first was.
    assert counted.news(NOW + RECENT + 1) == 0
    counted.note(POISON, 0, NOW + RECENT + 2)
    assert counted.news(NOW + RECENT + 2) == POISON
