"""`ring-proxy top`: the console of a running sidecar in a terminal, live, for who has only a shell.

It reads the same stream of snapshots as the page. `picture` makes lines of one, and `run` shows them.
"""

import contextlib
import curses
import http.client
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from proxy.commands.asking import TIMEOUT, WHICH, QuestionError, detail
from proxy.commands.explain import change
from proxy.commands.group import seconds
from proxy.process.logs import escaped

LEVELS: Final = ("critical", "warning", "note")
"""The severities of findings, by their number."""

MOST_EVENT: Final = 16 << 20
"""The most bytes of one event."""

Subject = tuple[str, str, str]
"""The kind, virtual host and name of an exchange or group; empty for all of the sidecar."""

ALL: Final[Subject] = ("", "", "")

_FAILED: Final = frozenset({"nacked", "unroutable", "unavailable", "rejected", "invalid", "unknown"})

_LEGEND: Final = ". nothing waits   + messages wait   ! nobody gets them   > moves   = paused   ? unknown"

_HELP: Final = "up, down: choose   Enter: open   Esc: back   q: quit"


class Line(NamedTuple):
    """One line of the picture."""

    text: str
    style: str = ""
    """`title`, `head`, `bad`, `warn`, `note`, or empty."""
    opens: Subject | None = None
    """The exchange or group that Enter opens on this line; None for a line that cannot be chosen."""


def picture(snapshot: Mapping[str, Any], subject: Subject) -> list[Line]:
    """Return the lines of a snapshot of a subject.

    Raises KeyError, TypeError, IndexError or ValueError for a snapshot that is none.
    """
    overview, found = snapshot["overview"], snapshot["detail"]
    ready = "ready" if overview["ready"] else "not ready"
    lines = [Line(f"ringproxy, sidecar {overview['sidecar'][:8]}, {ready}", "title"), Line("")]
    if subject == ALL:
        lines += _all(overview)
    elif snapshot.get("fault"):
        lines.append(Line(snapshot["fault"], "bad"))
    elif found is None:
        lines.append(Line(f"This sidecar knows no {subject[0]} {subject[2]} in {subject[1]}, or has no member of it."))
    else:
        lines += [Line(f"{subject[0]} {subject[2]} in {subject[1]}", "title"), Line("")]
        own = [each for each in overview["findings"]["shown"] if _subject(each["kind"], each) == subject]
        lines += [line._replace(opens=None) for line in _findings(own)]
        lines += _exchange(found) if subject[0] == "exchange" else _group(found)
    # Names are the choice of whoever connects and declares, and must not steer the terminal of who looks.
    return [line._replace(text=escaped(line.text)) for line in lines]


def _all(o: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of the overview."""
    found = o["findings"]
    if not found["of"]:
        yield Line("Nothing is wrong, as far as this sidecar sees.")
    yield from _findings(found["shown"])
    yield from _more(found, "findings")
    good, bad = _rates(o["rates"])
    yield Line("")
    yield Line(
        f"{good:.1f}/s succeed, {bad:.1f}/s fail, {o['in_flight']} wait for a confirm, {o['sessions']} AMQP clients"
    )
    for ingress in ("amqp", "http"):
        times = [step["latency"][ingress] for step in o["steps"] if step["latency"][ingress][0] is not None]
        if times:
            p50, p99 = times[-1]
            yield Line(f"confirm latency, {ingress}: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms")
    groups = o["groups"]
    if groups["of"]:
        rows = [
            [
                *(g["exchange"], g["vhost"], str(g["members"]), str(g["shards"]), _figure(g["ready"])),
                *(_rate(g["publish_rate"]), _rate(g["consume_rate"]), _empty(g), str(g["moving"])),
            ]
            for g in groups["shown"]
        ]
        titles = ("GROUP", "VIRTUAL HOST", "MEMBERS", "SHARDS", "WAITING", "IN", "OUT", "EMPTY IN", "MOVES")
        yield from _table(titles, rows, [_subject("group", g) for g in groups["shown"]])
        yield from _more(groups, "groups")
    exchanges = o["exchanges"]
    if exchanges["of"]:
        rows = [
            [
                *(e["exchange"], e["vhost"], _way(e)),
                *(str(e["destinations"]), *map(_rate, _rates(e["rates"]))),
            ]
            for e in exchanges["shown"]
        ]
        columns = ("EXCHANGE", "VIRTUAL HOST", "PUBLISHES ARE", "QUEUES", "SUCCEED", "FAIL")
        yield from _table(columns, rows, [_subject("exchange", e) for e in exchanges["shown"]])
        yield from _more(exchanges, "exchanges")


def _way(e: Mapping[str, Any]) -> str:
    """Return how publishes to an exchange go, and to which generation it changes."""
    way = str(e["state"]) + (f" ({e['why']})" if e["why"] else "")
    return f"{way}, {change(e['change'])}" if e.get("change") else way


def _findings(found: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
    for each in found:
        level = LEVELS[each["severity"]]
        style = {"critical": "bad", "warning": "warn"}.get(level, "note")
        subject = _subject(each["kind"], each) if each["kind"] else None
        yield Line(f"{level.upper():<9} {each['title']}", style, subject)
        yield Line(f"{'':<9} {each['text']}")
        yield Line(f"{'':<9} docs/how-to/troubleshoot.md#{each['section']}")


def _exchange(e: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of an exchange: its ring, what went where, and its last changes."""
    good, bad = _rates(e["rates"])
    hashed, age = e.get("hashed") or "nothing", seconds(e["age_seconds"])
    yield Line(f"{good:.1f}/s succeed, {bad:.1f}/s fail, hashes {hashed}, read {age} ago")
    if e.get("change"):
        yield Line(f"it {change(e['change'])}", "warn")
    sent = e["sent"]
    rows = [
        (d["name"], f"{100 * d['share']:.2f} %", f"{100 * d['sent'] / sent:.2f} %" if sent else "none", str(d["sent"]))
        for d in e["destinations"]
    ]
    yield from _table(("DESTINATION", "EXPECTED", "OBSERVED", "SENT"), rows)
    changes = [(c["at"], f"{100 * c['moved']:.2f} %", c["what"], c["why"]) for c in reversed(e["changes"])]
    if changes:
        yield from _table(("CHANGED AT", "MOVED", "HOW", "WHY"), changes)


def _group(g: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of a group: its lag, members with their shards, moves, blocked keys and shards."""
    lag = g["lag"]
    yield Line(
        f"{_figure(lag['ready'])} wait, {_figure(lag['unacked'])} at work, {_rate(lag['publish_rate'])} in, "
        f"{_rate(lag['consume_rate'])} out, empty in {_empty(lag)}"
    )
    history = g["lag_history"]
    waited = [each for each in history["ready"] if each is not None] if history is not None else []
    if len(waited) > 1:
        past = seconds(history["until"] - history["since"])
        yield Line(f"in the last {past} {min(waited):.0f} to {max(waited):.0f} waited")
    yield from (Line(f"not exact: {reason}", "warn") for reason in g["reasons"])
    if g["membership"]:
        yield Line(f"not balanced: {g['membership']}", "warn")
    moving = {move["shard"] for move in g["moves"]}
    titles = {member["id"]: member["client"] or member["id"] for member in g["members"]}
    yield Line("")
    yield Line(
        "MEMBERS AND SHARDS   . nothing waits   + messages wait   ! nobody gets them   > moves   = paused   ? unknown",
        "head",
    )
    # By the id: members on one connection have the same title.
    held: dict[str | None, list[str]] = {}
    for shard in g["shards"]:
        holder = shard["holder"] if shard["holder"] in titles else None
        held.setdefault(holder, []).append(_cell(shard, moving))
    for member in g["members"]:
        who, cells = titles[member["id"]], " ".join(held.get(member["id"], []))
        has = f"{len(member['shards'])} of {member['wanted']}, {member['unacked']} unacked"
        yield Line(f"{who}, {has}: {cells}", "bad" if member["stalled"] else "")
    if None in held:
        yield Line(f"nobody: {' '.join(held[None])}", "bad")
    if g["moves"]:
        ways = [
            (
                m["shard"],
                titles.get(m["from"], "nobody"),
                titles.get(m["to"], "nobody"),
                seconds(m["since_seconds"]),
                m["why"],
            )
            for m in g["moves"]
        ]
        yield from _table(("MOVES", "FROM", "TO", "FOR", "WHY NOT YET"), ways)
    if g["keys"]:
        keys = [
            (
                k["key"] or k["key_hash"],
                k["shard"],
                k["state"],
                seconds(k["since_seconds"]),
                str(k["tries"]),
                str(k["waiting"]),
            )
            for k in g["keys"]
        ]
        yield from _table(("BLOCKED KEY", "SHARD", "STATE", "SINCE", "TRIES", "BEHIND IT"), keys)
    shards = sorted(g["shards"], key=lambda each: (not each["waiting"], -(each["ready"] or 0)))
    rows = [
        [
            *(s["shard"], titles.get(s["holder"], "nobody"), _figure(s["ready"]), _figure(s["unacked"])),
            *(_rate(s["publish_rate"]), _rate(s["consume_rate"]), _empty(s), str(s["redelivered"])),
        ]
        for s in shards
    ]
    yield from _table(("SHARD", "MEMBER", "WAITING", "UNACKED", "IN", "OUT", "EMPTY IN", "REDELIVERED"), rows)


def _cell(shard: Mapping[str, Any], moving: set[str]) -> str:
    """Return a shard as a word of a member's line: the number or end of its name, and a sign of its state."""
    name = str(shard["shard"])
    if shard["paused"]:
        sign = "="
    elif shard["waiting"]:
        sign = "!"
    elif name in moving:
        sign = ">"
    else:
        sign = "?" if shard["ready"] is None else "+" if shard["ready"] else "."
    return f"{name.rpartition('.')[2][-6:]}{sign}"


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], opens: Sequence[Subject] | None = None
) -> Iterator[Line]:
    """Yield an empty line, the titles and the rows, in columns."""
    cells = [tuple(escaped(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]

    def row_of(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    yield Line("")
    yield Line(row_of(titles), "head")
    for number, row in enumerate(cells):
        yield Line(row_of(row), "", opens[number] if opens is not None else None)


def _more(found: Mapping[str, Any], what: str) -> Iterator[Line]:
    if (left := found["of"] - len(found["shown"])) > 0:
        yield Line(f"{left} more {what} are not shown.", "note")


def _subject(kind: str, of: Mapping[str, Any]) -> Subject:
    return kind, of["vhost"], of["exchange"]


def _rates(rates: Mapping[str, float]) -> tuple[float, float]:
    """Return how many publishes a second succeed, and how many fail."""
    bad = sum(rate for outcome, rate in rates.items() if outcome in _FAILED)
    return sum(rates.values()) - bad, bad


def _figure(number: int | None) -> str:
    return "?" if number is None else str(number)


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f}/s"


def _empty(lag: Mapping[str, Any]) -> str:
    if lag["ready"] is None:
        return "?"
    if not lag["ready"]:
        return "empty"
    return "never" if lag["seconds_to_empty"] is None else seconds(lag["seconds_to_empty"])


class Stream:
    """The snapshots of one subject, read in a thread of their own until `close`."""

    def __init__(self, sidecar: str, subject: Subject) -> None:
        """Begin to read."""
        self._sidecar, self._subject, self._is_over = sidecar, subject, threading.Event()
        self.newest: Mapping[str, Any] | None = None
        self.fault = ""
        """Why there is no stream at present; empty while there is one."""
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Have the thread end with the next event."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                for found in events(self._sidecar, self._subject):
                    self.newest, self.fault = found, ""
                    if self._is_over.is_set():
                        return
                self.fault = f"{self._sidecar}: the sidecar has ended the stream; trying again"
            except QuestionError as error:
                self.fault = str(error)
            self._is_over.wait(1.0)


def events(sidecar: str, subject: Subject) -> Iterator[Mapping[str, Any]]:
    """Yield the snapshots of a subject as they come. Raises QuestionError."""
    if not sidecar.startswith(("http://", "https://")):
        raise QuestionError(f"{sidecar!r} is not a URL such as http://127.0.0.1:15681; {WHICH}")
    query = f"?{urlencode(dict(zip(('kind', 'vhost', 'exchange'), subject, strict=True)))}" if subject != ALL else ""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{sidecar.rstrip('/')}/console/events{query}", timeout=TIMEOUT) as response:
            fresh = time.monotonic()
            while line := response.readline(MOST_EVENT):
                # The sidecar writes comments while it makes no snapshot.
                if not line.startswith(b"data: ") and time.monotonic() - fresh > TIMEOUT:
                    raise QuestionError(f"{sidecar}: it makes no snapshots; its log has the reason")
                if line.startswith(b"data: "):
                    found = json.loads(line.removeprefix(b"data: "))
                    if not isinstance(found, dict) or "overview" not in found:
                        raise QuestionError(f"{sidecar}: not a sidecar's answer; {WHICH}")
                    yield found
                    fresh = time.monotonic()
    except urllib.error.HTTPError as error:
        hint = (
            "; is its admin_console false, or is it of an older release?"
            if error.code == http.HTTPStatus.NOT_FOUND
            else ""
        )
        raise QuestionError(f"{sidecar} answered {error.code}: {detail(error)}{hint}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise QuestionError(f"{sidecar}: no answer: {getattr(why, 'strerror', None) or why}; {WHICH}") from None


def run(sidecar: str) -> None:
    """Show the console until the user quits; where there is no terminal, print one picture. Raises QuestionError."""
    first = next(events(sidecar, ALL), None)
    if first is None:
        raise QuestionError(f"{sidecar}: the stream ended before its first event; {WHICH}")
    try:
        lines = picture(first, ALL)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise QuestionError(f"{sidecar}: not a sidecar's answer ({error!r}); {WHICH}") from None
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(line.text for line in lines))
        return
    try:
        curses.wrapper(lambda screen: _Top(screen, sidecar, first).show())
    except KeyboardInterrupt:
        pass
    except curses.error as error:
        term = os.environ.get("TERM", "")
        raise QuestionError(
            f"TERM={term!r}: {error}; set TERM to the kind of your terminal, such as xterm, or pipe the output into cat"
        ) from None


def follow(before: Sequence[Subject], at: int, now: Sequence[Subject]) -> int:
    """Return which row of `now` shows what row `at` of `before` did, or the nearest if none does.

    A finding that appears moves the rows after it, so that a row is known by its subject; of several rows of a subject,
    by how many follow.
    """
    if at < len(before):
        places = [number for number, subject in enumerate(now) if subject == before[at]]
        if places:
            return places[max(len(places) - before[at:].count(before[at]), 0)]
    return min(at, max(len(now) - 1, 0))


class _Top:
    """The terminal page."""

    def __init__(self, screen: "curses.window", sidecar: str, first: Mapping[str, Any]) -> None:
        self._screen, self._sidecar = screen, sidecar
        self._subject, self._at, self._first_line = ALL, 0, 0
        self._opens: Sequence[Subject] = []
        """The subjects of the rows that could be chosen when the page was last drawn."""
        self._snapshot = first
        self._stream = Stream(sidecar, ALL)
        self._styles = _styles()

    def show(self) -> None:
        """Draw and take keys until the user quits."""
        self._screen.timeout(250)
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        while True:
            self._snapshot = self._stream.newest or self._snapshot
            lines = picture(self._snapshot, self._subject)
            chosen = [number for number, line in enumerate(lines) if line.opens is not None]
            opens = [line.opens for line in lines if line.opens is not None]
            self._at, self._opens = follow(self._opens, self._at, opens), opens
            self._draw(lines, chosen)
            key = self._screen.getch()
            if key == ord("q"):
                self._stream.close()
                return
            self._take(key, lines, chosen)

    def _take(self, key: int, lines: Sequence[Line], chosen: Sequence[int]) -> None:
        page = max(self._screen.getmaxyx()[0] - 3, 1)
        steps = {curses.KEY_UP: -1, ord("k"): -1, curses.KEY_DOWN: 1, ord("j"): 1}
        if key in steps and chosen:
            self._at = min(max(self._at + steps[key], 0), len(chosen) - 1)
            self._first_line = min(self._first_line, chosen[self._at])
            self._first_line = max(self._first_line, chosen[self._at] - page + 1)
        elif key in steps:
            self._first_line += steps[key]
        elif key in (curses.KEY_NPAGE, ord(" ")):
            self._first_line += page
        elif key == curses.KEY_PPAGE:
            self._first_line -= page
        elif key in (10, 13, curses.KEY_ENTER) and chosen:
            self._open(lines[chosen[min(self._at, len(chosen) - 1)]].opens or ALL)
        elif key in (27, curses.KEY_BACKSPACE, 127, curses.KEY_LEFT) and self._subject != ALL:
            self._open(ALL)
        self._first_line = min(max(self._first_line, 0), max(len(lines) - page, 0))

    def _open(self, subject: Subject) -> None:
        self._stream.close()
        self._subject, self._at, self._first_line, self._opens = subject, 0, 0, []
        self._snapshot = {**self._snapshot, "detail": None, "fault": ""}
        self._stream = Stream(self._sidecar, subject)

    def _draw(self, lines: Sequence[Line], chosen: Sequence[int]) -> None:
        height, width = self._screen.getmaxyx()
        at = chosen[min(self._at, len(chosen) - 1)] if chosen else -1
        self._screen.erase()
        shown = lines[self._first_line : self._first_line + height - 2]
        for row, line in enumerate(shown):
            style = self._styles.get(line.style, 0) | (curses.A_REVERSE if self._first_line + row == at else 0)
            # A terminal of one column, or one that is being resized, takes nothing.
            with contextlib.suppress(curses.error):
                self._screen.addnstr(row, 0, line.text, width - 1, style)
        with contextlib.suppress(curses.error):
            last = escaped(self._stream.fault) or _HELP
            self._screen.addnstr(height - 1, 0, last, width - 1, self._styles["bad" if self._stream.fault else "note"])
        self._screen.refresh()


def _styles() -> dict[str, int]:
    """Return the attributes of each style, in colour where the terminal has any."""
    styles = {"title": curses.A_BOLD, "head": curses.A_BOLD, "bad": curses.A_BOLD, "warn": 0, "note": curses.A_DIM}
    with contextlib.suppress(curses.error):
        curses.use_default_colors()
        for number, (style, colour) in enumerate({"bad": curses.COLOR_RED, "warn": curses.COLOR_YELLOW}.items(), 1):
            curses.init_pair(number, colour, -1)
            styles[style] |= curses.color_pair(number)
    return styles
