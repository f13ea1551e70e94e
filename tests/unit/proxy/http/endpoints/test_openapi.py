"""The OpenAPI document is one, and says what the code does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from proxy.http.application import application
from proxy.http.endpoints.openapi import DOCUMENT
from proxy.http.endpoints.schemas import PROBLEMS, URN
from proxy.http.formats import problems
from proxy.settings.config import Settings

HTTP = Path(problems.__file__).parent
SCHEMAS = sorted(DOCUMENT["components"]["schemas"])


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def validator(schema: Any) -> jsonschema_rs.Draft202012Validator:
    """Of a schema in the document, which may refer to others of it."""
    return jsonschema_rs.Draft202012Validator({"components": DOCUMENT["components"], "allOf": [schema]})


def named(schema: str) -> jsonschema_rs.Draft202012Validator:
    return validator({"$ref": f"#/components/schemas/{schema}"})


def media(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every body that it takes or answers with."""
    yield from operation.get("requestBody", {}).get("content", {}).values()
    for answer in operation["responses"].values():
        yield from answer.get("content", {}).values()


def test_it_is_openapi_3_1() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_its_schemas_are_json_schemas() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    for _, _, operation in operations():
        for body in media(operation):
            validator(body["schema"])


def test_its_examples_fit_its_schemas() -> None:
    examples = [body for _, _, operation in operations() for body in media(operation) if "example" in body]
    examples += [p for p in DOCUMENT["components"]["parameters"].values() if "example" in p]
    assert len(examples) > 5
    for example in examples:
        validator(example["schema"]).validate(example["example"])


def test_every_operation_has_a_name_of_its_own_and_a_known_tag() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert {tag for _, _, operation in operations() for tag in operation["tags"]} == tags


def test_every_name_in_a_path_is_a_parameter() -> None:
    for _, path, operation in operations():
        refs = [p["$ref"].rpartition("/")[2] for p in operation.get("parameters", ()) if "$ref" in p]
        parameters = [DOCUMENT["components"]["parameters"][name] for name in refs]
        assert {p["name"] for p in parameters if p["in"] == "path"} == set(re.findall(r"{(\w+)}", path))


def test_it_has_the_paths_that_are_served_and_no_other() -> None:
    parts: list[Any] = [None] * 3
    served = application(Settings(), *parts).router.routes()
    assert {(route.method, route.resource.canonical) for route in served if route.resource} == {
        (method, path) for method, path, _ in operations()
    }


def raised(file: Path) -> Iterator[tuple[int | None, str]]:
    """The status and kind of every problem that a module makes; no status where it is computed."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ProblemError":
            status, kind = (a.value if isinstance(a, ast.Constant) else None for a in node.args[:2])
            if isinstance(kind, str):
                yield status if isinstance(status, int) else None, kind


def test_every_problem_is_documented() -> None:
    documented = {(p.status, p.kind) for p in PROBLEMS}
    assert {kind for _, kind in documented} == set(problems._TITLES)
    for file in HTTP.glob("*.py"):
        for status, kind in raised(file):
            # That one answers with the management API's statuses, and documents them apart.
            if file.stem != "compat" and status is not None:
                assert (status, kind) in documented, file.name


def test_every_documented_problem_is_an_answer_of_some_operation() -> None:
    answered = {
        (int(status), urn.removeprefix(URN))
        for _, _, operation in operations()
        for status, answer in operation["responses"].items()
        for body in answer.get("content", {}).values()
        for urn in body["schema"].get("properties", {}).get("type", {}).get("enum", ())
    }
    assert answered == {(p.status, p.kind) for p in PROBLEMS}


@pytest.mark.parametrize(
    "item",
    [
        {"payload": ""},
        {"id": "1", "key": "k", "payload": "é", "payload_encoding": "string", "content_type": "text/plain"},
        {"payload": "AAE=", "payload_encoding": "base64", "headers": {"a": 1, "b": [None, {"c": 1.5}]}},
        {"payload": None, "payload_encoding": "json", "properties": {"priority": 9, "expiration": "60000"}},
    ],
)
def test_items_that_are_taken(item: dict[str, Any]) -> None:
    named("Item").validate(item)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"key": "k"},
        {"payload": 1},
        {"payload": "", "routing_key": "k"},
        {"payload": "=", "payload_encoding": "base64"},
        {"payload": "AA", "payload_encoding": "base64"},
        {"payload": "", "payload_encoding": "hex"},
        {"payload": "", "key": "k" * 256},
        {"payload": "", "headers": {"CC": ["q"]}},
        {"payload": "", "headers": {"": 1}},
        {"payload": "", "properties": {"priority": 256}},
        {"payload": "", "properties": {"user_id": "me"}},
        {"payload": "", "properties": {"delivery_mode": 3}},
    ],
)
def test_items_that_are_not(item: dict[str, Any]) -> None:
    assert not named("Item").is_valid(item)
