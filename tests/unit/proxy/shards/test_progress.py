"""The lines that tell how a drain goes on."""

from proxy.shards.progress import Progress

AT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def test_a_line_says_how_much_is_left_and_when_it_ends_at_the_rate_of_the_last_minute() -> None:
    progress = Progress(4)
    assert (
        progress.line(4, 2000, 0, AT)
        == "0 of 4 queues are drained, 2,000 messages are left, as the management API counts"
    )
    assert progress.line(3, 1900, 2, AT) == ""
    assert progress.line(3, 1500, 5, AT).endswith(
        "1,500 messages are left, as the management API counts; at 100.0/s done in 15 s, at 2023-11-14 22:13:35Z"
    )
    assert "at 50.0/s done in 10 s" in progress.line(1, 500, 30, AT)
    # Nothing has come out in the last minute.
    for now in range(35, 90, 5):
        progress.line(1, 500, now, AT)
    assert progress.line(1, 500, 90, AT).endswith("; no fewer than 60 s ago")


def test_long_drains_are_told_in_minutes_and_hours() -> None:
    for rate, told in ((10, "done in 17 min"), (1, "done in 2.8 h")):
        progress = Progress(1)
        progress.line(1, 10_000 + 10 * rate, 0, AT)
        assert told in progress.line(1, 10_000, 10, AT)


def test_nothing_is_told_of_messages_that_are_gone_and_little_while_nothing_changes() -> None:
    progress = Progress(2)
    assert progress.line(2, 7, 0, AT)
    assert progress.line(1, 0, 5, AT) == "1 of 2 queues are drained, 0 messages are left, as the management API counts"
    told = [now for now in range(10, 200, 5) if progress.line(1, 0, now, AT)]
    assert told == [65, 125, 185]
