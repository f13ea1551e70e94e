"""The publishes of a channel without an answer, by number: constant work for each, whatever order answers come in.

They lie in pages of consecutive numbers. A page is dropped with its last publish, so that a publish which is never
answered keeps one page, and not all that comes behind it.
"""

# mypyc: compiled

from collections.abc import Collection
from typing import Final

from mypy_extensions import i64

from proxy.routing.counters import Counters

PAGE_BITS: Final = 5
PAGE: Final = 1 << PAGE_BITS
"""Publishes of one page. A page takes about 400 bytes, and in the worst case holds a single publish."""

_NEAR: Final = 32
"""How many page numbers in a row `first_beyond` tries before it goes on from the lowest page that exists."""


class Page:
    """The publishes of one range of PAGE numbers, while any of them has no answer."""

    __slots__ = ("count", "counters")

    def __init__(self) -> None:
        """The page has no publish yet."""
        self.counters: list[Counters | None] = [None] * PAGE
        """By number within the page: the publish's counters; None for a number without an answer due."""
        self.count: i64 = 0
        """How many publishes are in the page."""


class Unsettled:
    """The numbers of one channel's publishes without an answer, each with its counters."""

    __slots__ = ("_current", "_pages", "count")

    def __init__(self) -> None:
        """Start empty: every publish so far has its answer."""
        self._pages: dict[int, Page] = {}
        """The pages, ascending. A publish is in the page whose number is its own, shifted right by PAGE_BITS."""
        self._current: Page | None = None
        """The page of the last publish, which stays even if it is empty; None before the first publish."""
        self.count: i64 = 0
        """How many publishes have no answer."""

    @property
    def pages(self) -> int:
        """How many pages of memory are in use; at most one for each publish, and one more."""
        return len(self._pages)

    def add(self, number: int, counters: Counters) -> None:
        """Add a publish; its number is one more than the last one's, or the first after `drop`."""
        page, at = self._current, number & (PAGE - 1)
        if page is None or at == 0:
            page = self._turn(number)
        page.counters[at] = counters
        page.count += 1
        self.count += 1

    def _turn(self, number: int) -> Page:
        """Begin the page of a number and return it; the page before is dropped if it is empty."""
        before = self._current
        if before is not None and not before.count:
            del self._pages[(number - 1) >> PAGE_BITS]
        page = self._current = self._pages[number >> PAGE_BITS] = Page()
        return page

    def has(self, number: int) -> bool:
        """Return whether a publish has no answer yet."""
        page = self._pages.get(number >> PAGE_BITS)
        return page is not None and page.counters[number & (PAGE - 1)] is not None

    def take(self, number: int) -> Counters | None:
        """Take a publish out and return its counters; None if it has its answer."""
        page = self._pages.get(number >> PAGE_BITS)
        if page is None:
            return None
        at = number & (PAGE - 1)
        counters = page.counters[at]
        if counters is not None:
            page.counters[at] = None
            page.count -= 1
            self.count -= 1
            if not page.count and page is not self._current:
                del self._pages[number >> PAGE_BITS]
        return counters

    def within(self, first: int, last: int) -> list[int]:
        """Return the numbers from `first` to `last` that have no answer, ascending."""
        found: list[int] = []
        for index in self._indices(first, last):
            page = self._pages[index]
            base = index << PAGE_BITS
            numbers = range(max(first, base), min(last, base + PAGE - 1) + 1)
            found += [number for number in numbers if page.counters[number - base] is not None]
        return found

    def count_off(self, first: int, last: int, *, acked: bool) -> None:
        """Take all publishes from `first` to `last` out, and count each as acked or nacked in its counters."""
        for index in self._indices(first, last):
            page = self._pages[index]
            base = index << PAGE_BITS
            start: i64 = first - base if first > base else 0
            stop: i64 = last - base + 1 if last - base < PAGE else PAGE
            booked = page.counters
            at = start
            while at < stop:
                counters = booked[at]
                if counters is not None:
                    booked[at] = None
                    page.count -= 1
                    self.count -= 1
                    if acked:
                        counters.acked += 1
                    else:
                        counters.nacked += 1
                at += 1
            if not page.count and page is not self._current:
                del self._pages[index]

    def count_of(self, counted: Collection[Counters], last: int) -> int:
        """Return how many of the publishes up to `last` have no answer, of those with these counters."""
        found = 0
        for index in self._indices(1, last):
            base = index << PAGE_BITS
            for at, counters in enumerate(self._pages[index].counters):
                found += counters is not None and base + at <= last and counters in counted
        return found

    def first_beyond(self, number: int) -> int:
        """Return the lowest number above `number` without an answer.

        Call it only if all publishes up to `number` have an answer and some publish above has none.
        """
        number += 1
        page = self._pages.get(number >> PAGE_BITS)
        while True:
            if page is not None:
                at: i64 = number & (PAGE - 1)
                while at < PAGE:
                    if page.counters[at] is not None:
                        return number
                    at += 1
                    number += 1
            else:
                number = (number | (PAGE - 1)) + 1
            index = number >> PAGE_BITS
            for _ in range(_NEAR):
                page = self._pages.get(index)
                if page is not None:
                    break
                index += 1
            else:
                # Behind one that waited long there may be a long way to the next.
                index = max(index, next(iter(self._pages)))
                page = self._pages.get(index)
            number = index << PAGE_BITS

    def _indices(self, first: int, last: int) -> list[int]:
        """Return the indices of a range's pages in use: look at the range or at all pages, whichever is less."""
        low, high = first >> PAGE_BITS, last >> PAGE_BITS
        if high - low < len(self._pages):
            return [index for index in range(low, high + 1) if index in self._pages]
        return [index for index in self._pages if low <= index <= high]

    def drop(self) -> None:
        """Forget all publishes."""
        self._pages.clear()
        self._current = None
        self.count = 0
