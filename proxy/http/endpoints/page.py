"""An OpenAPI document as a page for people: plain HTML that needs no script and loads nothing."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from proxy.settings.config import Settings

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
"""The page's style sheet, which is part of it; a policy may allow it by its hash."""

_BASE = f"http://{Settings.http_listen}"
"""The address in the examples: the listener's default one."""


def page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI 3.1 document as an HTML page; only what our own document uses is understood."""
    return _Page(document).render()


class _Page:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def render(self) -> str:
        """Return the whole page: contents, operations by tag, ways to authenticate, and schemas."""
        info, components = self._document["info"], self._document["components"]
        title = escape(info["title"])
        tags = [(tag["name"], list(self._operations(tag["name"]))) for tag in self._document["tags"]]
        contents = [
            f"<li>{escape(name)}<ul>" + "".join(_entry(operation) for _, _, operation in operations) + "</ul>"
            for name, operations in tags
        ]
        sections = [
            f"<h2>{escape(name)}</h2>" + "".join(self._operation(*operation) for operation in operations)
            for name, operations in tags
        ]
        schemas = [self._schema(name, schema) for name, schema in components["schemas"].items()]
        schemes = [
            (escape(s["scheme"] if "scheme" in s else s["type"]), _prose(s["description"]))
            for s in components["securitySchemes"].values()
        ]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style>"
            f"<header><h1>{title}</h1><p>Version {escape(info['version'])}, "
            f'<a href="openapi.json">as OpenAPI {escape(self._document["openapi"])}</a></p></header>'
            f'<nav aria-label="Contents"><ul>{"".join(contents)}<li><a href="#access">Who may publish</a>'
            '<li><a href="#schemas">Schemas</a></ul></nav>'
            f"<main>{_prose(info['description'])}{''.join(sections)}"
            f'<h2 id="access">Who may publish</h2>{_table(("Scheme", "Meaning"), schemes)}'
            f'<h2 id="schemas">Schemas</h2>{"".join(schemas)}</main></html>'
        )

    def _operations(self, tag: str) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    yield method.upper(), path, operation

    def _operation(self, method: str, path: str, operation: Mapping[str, Any]) -> str:
        """Return the section about one operation: an example, its parameters, its body and its answers."""
        parameters = [self._resolved(parameter) for parameter in operation.get("parameters", ())]
        body = operation.get("requestBody", {})
        content = body.get("content", {})
        bodies = "".join(_body(kind, media) for kind, media in content.items())
        return (
            f'<section id="{operation["operationId"]}"><h3>{escape(operation["summary"])}</h3>'
            f'<p class="path"><b class="{method.lower()}">{method}</b> <code>{escape(path)}</code></p>'
            + _prose(operation.get("description", ""))
            + _titled("Example", f"<pre>{escape(self._curl(path, operation, parameters, content))}</pre>")
            + _titled("Parameters", _table(("Name", "In", "Value", "Meaning"), map(_parameter, parameters)))
            + _titled("Body", _prose(body.get("description", "")) + bodies)
            + self._answers(operation["responses"])
            + "</section>"
        )

    def _resolved(self, maybe: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object of the document, or what its `$ref` points to."""
        found: Mapping[str, Any] = maybe
        if "$ref" in maybe:
            found = self._document
            for part in maybe["$ref"].removeprefix("#/").split("/"):
                found = found[part]
        return found

    def _answers(self, answers: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the tables of an operation's answers: good ones are shown, problems are folded."""
        good = [_answer(status, answer) for status, answer in answers.items() if status < "400"]
        bad = [_answer(status, answer) for status, answer in answers.items() if status >= "400"]
        columns = ("Status", "When", "Body")
        statuses = ", ".join(status for status in answers if status >= "400")
        problems = f"<details><summary>Problems: {statuses}</summary>{_table(columns, bad)}</details>"
        return _titled("Answers", _table(columns, good) + problems)

    def _curl(
        self,
        path: str,
        operation: Mapping[str, Any],
        parameters: Iterable[Mapping[str, Any]],
        content: Mapping[str, Mapping[str, Any]],
    ) -> str:
        """Return a curl command to paste: the parameters that have an example, and the first kind of body."""
        examples = [p for p in parameters if "example" in p]
        for parameter in examples:
            path = path.replace(f"{{{parameter['name']}}}", quote(parameter["example"], safe=""))
        query = urlencode({p["name"]: p["example"] for p in examples if p["in"] == "query"})
        lines = ["curl " + shlex.quote(f"{_BASE}{path}{query and '?' + query}")]
        if {"basic": []} in operation.get("security", ()):
            lines.append("-u guest:guest")
        lines += ["-H " + shlex.quote(f"{p['name']}: {p['example']}") for p in examples if p["in"] == "header"]
        for kind, media in list(content.items())[:1]:
            lines.append("-H " + shlex.quote(f"Content-Type: {kind}"))
            lines.append("-d " + shlex.quote(_as_body(media["example"])))
        return " \\\n  ".join(lines)

    def _schema(self, name: str, schema: Mapping[str, Any]) -> str:
        """Return one schema, folded, with a table of its members."""
        required = schema.get("required", ())
        members = [
            (f"<code>{escape(member)}</code>{_star(member in required)}", _value(of), _prose(of.get("description", "")))
            for member, of in schema.get("properties", {}).items()
        ]
        # The link's target is inside, so that a browser which follows one unfolds it.
        return (
            f'<details><summary>{escape(name)}</summary><div id="schema-{escape(name)}">'
            + _prose(schema.get("description", ""))
            + (_table(("Member", "Value", "Meaning"), members) if members else f"<p>{_value(schema)}</p>")
            + "</div></details>"
        )


def _entry(operation: Mapping[str, Any]) -> str:
    return f'<li><a href="#{operation["operationId"]}">{escape(operation["summary"])}</a>'


def _titled(title: str, content: str) -> str:
    return f"<h4>{title}</h4>{content}" if content else ""


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells that are HTML already; an empty string for no rows."""
    body = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in rows)
    head = "".join(f'<th scope="col">{column}' for column in columns)
    return body and f'<div class="wide"><table><thead><tr>{head}<tbody>{body}</table></div>'


def _star(required: bool) -> str:
    return ' <abbr title="required">*</abbr>' if required else ""


def _parameter(parameter: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"<code>{escape(parameter['name'])}</code>{_star(parameter.get('required', False))}"
    return name, parameter["in"], _value(parameter["schema"]), _prose(parameter["description"])


def _body(kind: str, media: Mapping[str, Any]) -> str:
    schema = media["schema"]
    shown = f"<p><code>{escape(kind)}</code>: {_value(schema)}</p>{_prose(schema.get('description', ''))}"
    if (example := media.get("example")) is not None:
        shown += f"<details><summary>Example</summary><pre>{escape(_as_body(example))}</pre></details>"
    return shown


def _as_body(example: Any) -> str:
    """Return an example as it is sent: JSON, broken into lines if it is long."""
    if isinstance(example, str):
        return example
    text = json.dumps(example)
    return text if len(text) < 80 else json.dumps(example, indent=2)


def _answer(status: str, answer: Mapping[str, Any]) -> tuple[str, ...]:
    headers = "".join(f"<p>Header <code>{escape(name)}</code></p>" for name in answer.get("headers", ()))
    bodies = "".join(f"<p>{_value(media['schema'])}</p>" for media in answer.get("content", {}).values())
    return status, _prose(answer["description"]) + headers, bodies


def _value(schema: Mapping[str, Any]) -> str:
    """Return in a few words what a value of a schema may be, as HTML."""
    match schema:
        case {"$ref": str(target)}:
            name = target.rpartition("/")[2]
            return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
        case {"oneOf": choices}:
            return " or ".join(map(_value, choices))
        case {"allOf": [base, *_]}:
            return _value(base)
        case {"contentMediaType": _}:
            return "any bytes"
        case {"const": value}:
            return f"<code>{escape(str(value))}</code>"
        case {"enum": values}:
            return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)
        case {"type": "array", "items": item}:
            return f"array of {_value(item)}"
        case {"type": kinds}:
            return escape(kinds if isinstance(kinds, str) else " or ".join(kinds)) + _limits(schema)
        case _:
            return "anything"


def _limits(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f", {schema['minimum']} to {schema['maximum']}"
    return f", {schema['maxLength']} bytes" if "maxLength" in schema else ""


def _prose(text: str) -> str:
    """Return text as HTML paragraphs; what stands in backticks becomes code."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return "".join(f"<p>{paragraph}</p>" for paragraph in marked.split("\n\n") if paragraph)
