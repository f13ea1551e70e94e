"""The comparison of a day's counts with those of the days before."""

from datetime import date

import pytest

from pipeline import PipelineError
from pipeline.day.growth import DAYS, KEPT, Counts, Subject, findings, grown

TODAY = date(2026, 11, 29)
ORDERS = ("/", "orders")


def subject(what: str, name: str) -> Subject:
    return Subject(what, *ORDERS, name)


def counts(sample: float = 1.0, separator: str | None = None, **named: dict[str, int]) -> Counts:
    """The counts of one exchange, by what and name; its queue has all that is of no named one."""
    rows = [(subject(what, name), number) for what, some in named.items() for name, number in some.items()]
    return Counts.of(rows, {ORDERS: sample}, separator)


def names(now: Counts, before: dict[int, Counts]) -> list[tuple[str, int]]:
    """The names of all that has grown, and how many days ago; `before` is by how many days ago it was."""
    days = {date.fromordinal(TODAY.toordinal() - ago): one for ago, one in before.items()}
    return [(one.subject.name, (TODAY - one.since).days) for one in grown(now, days)]


def test_it_has_grown_since_the_newest_day_that_had_so_many_fewer() -> None:
    now = counts(key={"a": 300, "b": 300, "c": 300}, queue={"q": 10_000})
    before = {
        1: counts(key={"a": 290, "b": 100, "c": 290}, queue={"q": 10_000}),
        2: counts(key={"a": 100, "b": 100, "c": 290}, queue={"q": 10_000}),
        7: counts(key={"a": 10, "b": 100, "c": 290}, queue={"q": 10_000}),
    }
    assert names(now, before) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("messages", "earlier", "total", "is_grown"),
    [
        (14, 9, 100, False),
        (150, 100, 1000, True),
        (1500, 1000, 1000, True),
        (1499, 1000, 1000, False),
        (1500, 1000, 50_000, True),
        (1500, 1000, 50_001, False),
        (10, 0, 10, True),
        (9, 0, 10, False),
        (0, 0, 10, False),
    ],
)
def test_times_share_and_chance(messages: int, earlier: int, total: int, is_grown: bool) -> None:
    now = counts(key={"a": messages}, queue={"q": total})
    before = {1: counts(key={"a": earlier}, queue={"q": total})}
    assert names(now, before) == ([("a", 1)] if is_grown else [])


def test_what_is_not_kept_had_at_most_the_least_that_is() -> None:
    full = counts(key={f"k{n}": 1000 + n for n in range(KEPT + 5)})
    assert full.at_most == {"key": 1005}
    assert len(full.messages) == KEPT
    now = counts(key={"new": 1600}, queue={"q": 1600})
    (new,) = [one for one in grown(now, {date(2026, 11, 28): full}) if one.subject.what == "key"]
    assert new.on(date(2026, 11, 28)) == "at most 1,005"
    assert new.on(date(2026, 11, 27)) == "-"
    assert findings([new], TODAY)[0].sentence == (
        "Key new of exchange orders (virtual host /) has grown from at most 1,005 messages on 2026-11-28 to 1,600."
    )
    assert grown(counts(key={"new": 1400}, queue={"q": 1400}), {date(2026, 11, 28): full})[0].subject.what == "queue"


def test_keys_of_another_sample_and_tenants_of_another_separator_are_not_compared() -> None:
    now = counts(0.5, "/", key={"a": 500}, tenant={"t": 500}, queue={"q": 500})
    assert names(now, {1: counts(0.5, "/")}) == [("a", 1), ("t", 1), ("q", 1)]
    assert names(now, {1: counts(0.1, "/")}) == [("t", 1), ("q", 1)]
    assert names(now, {1: counts(0.5, None)}) == [("a", 1), ("q", 1)]


def test_a_file_has_all_of_it() -> None:
    for told in (Counts(), counts(0.25, ".", key={"a": 5}, tenant={"\udcff": 1}, queue={"q": 7})):
        assert Counts.of_json(told.to_json().encode(), "f") == told
    for text in (b"", b"{}", b"[]", b'{"counts": 1}'):
        with pytest.raises(PipelineError, match=r"^f: no counts of a day: .*: run that day again$"):
            Counts.of_json(text, "f")
    assert DAYS == 7
