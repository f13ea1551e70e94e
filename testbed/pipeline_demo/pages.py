"""Whether a browser shows a report: its plots and tables as they are laid out, not only that a file is there."""

from pathlib import Path

from testbed.browser import opened

PHONE, WIDE = 375, 1400
"""Widths of screens, in pixels, on which a report must be readable."""

_EXPONENT = r"(^|[\s(])[\d.,]+e[+-]?\d+($|[\s),%])"
"""A number in scientific notation, in JavaScript: as a table's cell or a label of a plot, where nobody reads it."""

_LAID_OUT = f"""(() => {{
    const written = [...document.querySelectorAll('td')].map(cell => cell.innerText);
    const notes = document.createTreeWalker(document.body, NodeFilter.SHOW_COMMENT);
    while (notes.nextNode()) written.push(notes.currentNode.data.trim());
    const size = e => {{ const b = e.getBoundingClientRect(); return [b.width, b.height]; }};
    const marks = s => [...s.querySelectorAll('path, use')].filter(e => size(e).some(n => n > 0)).length;
    return {{
        grade: document.querySelector('.verdict strong')?.innerText ?? '',
        about: [...document.querySelectorAll('dd')].map(e => e.innerText),
        exponents: written.filter(text => /{_EXPONENT}/i.test(text)),
        heading: document.querySelector('h1')?.innerText ?? '',
        plots: [...document.querySelectorAll('figure svg')].map(s => [...size(s), marks(s)]),
        tables: [...document.querySelectorAll('table')].map(t => [...size(t), t.rows.length]),
    }};
}})()"""

_SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""Pixels of the page that are beyond the screen's right edge."""


async def looked_at(browser: int, report: Path, *, plotted: bool = True) -> tuple[str, list[str]]:
    """Return what the browser shows of a report, an absolute path, in words; and what of it is not as it should be.

    `plotted` says whether it must have plots.
    """
    async with opened(browser, report.as_uri()) as tab:
        beyond = {}
        for width in (PHONE, WIDE):
            await tab.look_like(width)
            beyond[width] = await tab.value(_SIDEWAYS)
        shown = await tab.value(_LAID_OUT)
        complaints = [entry["entry"]["text"] for entry in tab.named("Log.entryAdded")]
        requests = [request["request"]["url"] for request in tab.named("Network.requestWillBeSent")]
    plots, tables = shown["plots"], shown["tables"]
    found = [f"{report}: the browser says: {text}" for text in complaints]
    found += [f"{report}: the page asks for {url}" for url in requests[1:] if not url.startswith("data:")]
    found += [f"{report}: {by} pixels are beyond a screen of {width}" for width, by in beyond.items() if by > 0]
    found += [f"{report}: scientific notation: {text}" for text in shown["exponents"]]
    if not shown["grade"] or not shown["about"]:
        found.append(f"{report}: its head tells no grade, or not what it is of: {shown['grade']!r}, {shown['about']}")
    if not shown["heading"]:
        found.append(f"{report}: there is no heading")
    if (plotted and not plots) or any(width < 200 or height < 100 or marks < 5 for width, height, marks in plots):
        found.append(f"{report}: plots that are not drawn: {plots}")
    if not tables or any(width < 100 or height < 20 or rows < 2 for width, height, rows in tables):
        found.append(f"{report}: tables that are not filled: {tables}")
    rows = sum(rows - 1 for _, _, rows in tables)
    return f"{shown['grade']}: {len(plots)} plots, {len(tables)} tables of {rows} rows", found
