"""SQL that checks a record's fields against ALLOWED.

It is text, since each function called by PySpark takes ten round trips to Java.
"""

from pipeline.data.schema import ALLOWED, VERSION

NO_RECORD = "a line that is no record"

OF_VERSION = f"concat('schema version ', coalesce(string(v), 'none'), ', known is {VERSION}')"
"""SQL for the complaint about a record of a version that is not known."""


def holds(name: str) -> str:
    """Return SQL that is true where `Allowed.holds` is for the field's value, and else false."""
    allowed = ALLOWED[name]
    good = [f"{name} IS NOT NULL"]
    if allowed.words:
        good.append(f"{name} IN ({', '.join(map(_quoted, allowed.words))})")
    if allowed.least is not None:
        good.append(f"{name} >= {_number(allowed.least)}")
    if allowed.most is not None:
        good.append(f"{name} <= {_number(allowed.most)}")
    held = " AND ".join(good)
    return f"({name} IS NULL OR {held})" if allowed.nullable else f"({held})"


def complaint(name: str) -> str:
    """Return SQL for the complaint about a field's value."""
    told = f"coalesce(substring(string({name}), 1, 100), 'null')"
    return f"concat({_quoted(f'field {name!r} is ')}, {told}, {_quoted(f', not {ALLOWED[name]}')})"


def _quoted(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _number(value: float) -> str:
    """Return a number as a literal of Spark's SQL, a double or a long."""
    return f"{value!r}D" if isinstance(value, float) else f"{value}L"
