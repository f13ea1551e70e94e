"""The page about the interface: sound HTML whose links lead somewhere, with nothing in it that runs."""

import json
import shlex
from html.parser import HTMLParser
from typing import Any

import pytest

from proxy.http.endpoints.docs import openapi_document
from proxy.http.endpoints.page import page

DOCUMENT = openapi_document()
UNCLOSED = {"meta", "li", "tr", "td", "th", "thead", "tbody"}
"""Elements that have no end tag, or may leave it out."""


class Reader(HTMLParser):
    """The content of a page; fails for an end tag that ends nothing."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        assert not any(name.startswith("on") for name in given)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag not in UNCLOSED:
            self._open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text[self._open[-1]][-1] += data


@pytest.fixture(scope="module")
def read() -> Reader:
    return Reader(page(DOCUMENT))


def test_its_links_lead_somewhere_in_it_or_to_the_document(read: Reader) -> None:
    assert len(set(read.ids)) == len(read.ids)
    assert set(read.links) - {"openapi.json"} <= {f"#{target}" for target in read.ids}
    assert "openapi.json" in read.links


def test_it_has_every_operation_schema_and_parameter(read: Reader) -> None:
    operations = [o for methods in DOCUMENT["paths"].values() for o in methods.values()]
    assert read.text["h3"] == [operation["summary"] for operation in operations]
    assert set(DOCUMENT["components"]["schemas"]) <= set(read.text["summary"])
    for parameter in DOCUMENT["components"]["parameters"].values():
        assert parameter["name"] in read.text["code"]


def test_it_needs_no_script_and_loads_nothing(read: Reader) -> None:
    assert not read.tags & {"script", "link", "img", "iframe", "object", "form"}


def test_a_documents_texts_are_texts() -> None:
    def poisoned(value: Any) -> Any:
        match value:
            case dict():
                return {name: poisoned(of) for name, of in value.items()}
            case list():
                return [poisoned(of) for of in value]
            case str() if " " in value:
                return value + ' <script>alert("1")</script>&amp;'
            case _:
                return value

    read = Reader(page(poisoned(DOCUMENT)))

    assert "script" not in read.tags
    assert read.text["h1"][0].endswith('<script>alert("1")</script>&amp;')


def test_its_commands_are_whole(read: Reader) -> None:
    commands = [shlex.split(text) for text in read.text["pre"] if text.startswith("curl ")]
    assert len(commands) == len([o for methods in DOCUMENT["paths"].values() for o in methods.values()])
    for command in commands:
        assert "{" not in command[1]
        if "-d" in command and "Content-Type: application/json" in command:
            json.loads(command[command.index("-d") + 1])
