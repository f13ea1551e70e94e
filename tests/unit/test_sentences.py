"""Sentences of the code begin with their subject: docstrings, comments, log lines and help texts of every folder.

A sentence that begins with What, Of, That, So, Whoever, Such or Also leans on the one above it, or hides its subject.
A question may begin with What. A quotation begins with its quotation mark, and is left alone.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = "ring", "proxy", "pipeline", "testbed", "bench", "tests"

_OPENERS = r"(?:What|Of|That|So|Whoever|Such|Also)\b"
_opens = re.compile(_OPENERS).match
_opens_small = re.compile(_OPENERS, re.IGNORECASE).match
_has_one = re.compile(rf"\b{_OPENERS}").search
_ends = re.compile(r"(?<=[.!?:])[)\"'`*]*\s+").split
_parts = re.compile(r"(?:^|\n[ ]*\n|\n)[ ]*[-*] |\n[ ]*\n").split
"""Split a text into its paragraphs and the items of its lists."""

Text = tuple[int, str]
"""The line in which a text begins, and the text."""


def docstrings(tree: ast.AST) -> Iterator[Text]:
    """Yield all strings that stand alone, those below fields too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(source: str) -> Iterator[Text]:
    """Yield the comments; those in consecutive lines, one below the other, are one text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [(*token.start, token.string.lstrip("#")) for token in tokens if token.type == tokenize.COMMENT]
    for _, block in groupby(enumerate(found), lambda it: (it[1][0] - it[0], it[1][1])):
        lines = [comment for _, comment in block]
        yield lines[0][0], "\n".join(text for _, _, text in lines)


def messages(tree: ast.AST) -> Iterator[Text]:
    """Yield the text of each call of a method of `log`, and of each `help`, up to its first value."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        of = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = call.args[:2] if isinstance(of, ast.Name) and of.id == "log" else []
        for each in (*given, *(keyword.value for keyword in call.keywords if keyword.arg == "help")):
            first = each.values[0] if isinstance(each, ast.JoinedStr) and each.values else each
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield call.lineno, first.value


def faults(source: str) -> list[Text]:
    """Return the sentences that begin with a word that none may begin with; messages begin with a small letter."""
    tree = ast.parse(source)
    texts = [*docstrings(tree), *comments(source)] if _has_one(source) else []
    sentences = [(line, sentence) for line, text in texts for part in _parts(text) for sentence in _ends(part.strip())]
    found = [(line, sentence) for line, sentence in sentences if _opens(sentence) and not sentence.endswith("?")]
    said = [(line, sentence) for line, text in messages(tree) for sentence in _ends(text)]
    return found + [(line, sentence) for line, sentence in said if _opens_small(sentence)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_begin_with_their_subject(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": text
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in faults(path.read_text())
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""What it does."""', 1),
        ('"""It ends.\n\n- So it does.\n"""', 1),
        ('x = 1\n"""Numbers. Of these, one."""', 1),
        ("# It ends\n# here. That\n# is all.", 1),
        ("x = 1  # Also here", 1),
        ('log.warning("what it read: %s", x)', 1),
        ('log.log(level, "It ended. So did others")', 1),
        ('add("--x", help=f"of {y}")', 1),
        ('"""What does it do? It ends. What did it do?"""', 0),
        ('"""The page says "What it does": so much is said, and what is not."""', 0),
        ('x = "What is data, is data."', 0),
    ],
)
def test_the_rule_finds_what_it_should(source: str, count: int) -> None:
    assert len(faults(source)) == count
