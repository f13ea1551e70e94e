"""The OpenAPI document is one, and says what the code does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
import schemathesis

from proxy.http.application import application
from proxy.http.endpoints.docs import openapi_document
from proxy.http.formats import fields, parsing, problems
from proxy.http.formats.message import FAN_OUT, TRACES
from proxy.outcome import Outcome
from proxy.settings.config import Settings
from proxy.topology.table import PassReason
from proxy.wire.properties import HEADER_NAME, MOST_DEPTH, NAMES, SHORT_STRING, PropertyError, encoded
from ring.hashing import SLOTS

HTTP = Path(problems.__file__).parents[1]
URN = "urn:ringproxy:problem:"
DOCUMENT = openapi_document()
SCHEMAS = sorted(DOCUMENT["components"]["schemas"])


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def validator(schema: Any) -> jsonschema_rs.Draft202012Validator:
    """Return the validator of a schema in the document, which may refer to others of it."""
    return jsonschema_rs.Draft202012Validator({"components": DOCUMENT["components"], "allOf": [schema]})


def named(schema: str) -> jsonschema_rs.Draft202012Validator:
    return validator({"$ref": f"#/components/schemas/{schema}"})


def media(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every body that it takes or answers with."""
    yield from operation.get("requestBody", {}).get("content", {}).values()
    for answer in operation["responses"].values():
        yield from answer.get("content", {}).values()


SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
"""The document as schemathesis has it. It imports most of its modules only now, and pytest parses those anew. Python
3.11's parser fails if tasks of other tests are collected meanwhile: before the first test there are none."""


def test_it_is_openapi_3_1() -> None:
    SCHEMA.validate()


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
    assert {(route.method, route.resource.canonical.rstrip("/")) for route in served if route.resource} == {
        (method, path) for method, path, _ in operations()
    }


class Problem(NamedTuple):
    """One kind of answer that is no success, by its status; None for what a call computes."""

    status: Any
    kind: Any
    outcome: str | None
    retryable: Any


def raised() -> Iterator[Problem]:
    """Every problem that the HTTP listener's modules make, but for those in the management API's own form."""
    for file in HTTP.rglob("*.py"):
        if file.parent.name == "admin" or file.name == "management.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="ProblemError"), args=[status, ast.Constant(value=kind), _, outcome]):
                    retryable = [k.value for k in node.keywords if k.arg == "retryable"] or [ast.Constant(False)]
                    yield Problem(
                        status.value if isinstance(status, ast.Constant) else None,
                        kind,
                        outcome.attr.lower() if isinstance(outcome, ast.Attribute) and outcome.attr.isupper() else None,
                        retryable[0].value if isinstance(retryable[0], ast.Constant) else None,
                    )


def documented() -> Iterator[tuple[str, int, list[str], dict[str, Any], str]]:
    """Yield every answer that is a problem: its operation, status, kinds, what its members are and its description."""
    for _, _, operation in operations():
        for status, answer in operation["responses"].items():
            if content := answer.get("content", {}).get("application/problem+json"):
                members = content["schema"]["properties"]
                kinds = [urn.removeprefix(URN) for urn in members["type"]["enum"]]
                yield operation["operationId"], int(status), kinds, members, answer["description"]


def test_every_problem_is_documented_as_the_code_makes_it() -> None:
    found = list(raised())
    assert len(found) > 25
    for problem in found:
        fitting = [
            members
            for _, status, kinds, members, _ in documented()
            if problem.kind in kinds and problem.status in (None, status)
        ]
        assert fitting, problem
        for members in fitting:
            assert problem.outcome in (None, *members["outcome"]["enum"]), problem
            assert problem.retryable in (None, members["retryable"]["const"]), problem


def test_every_documented_problem_exists() -> None:
    told = {kind for _, _, kinds, _, _ in documented() for kind in kinds}
    assert told == set(problems._TITLES)


def test_a_problem_is_told_in_the_same_words_everywhere() -> None:
    told: dict[tuple[int, str], set[str]] = {}
    for operation, status, kinds, members, description in documented():
        assert members["status"] == {"const": status}
        if operation != "publishAsManagement":  # has words of its own for answers in two forms
            lines = description.split("\n\n")
            assert [line.split("`")[1] for line in lines] == kinds
            for kind, line in zip(kinds, lines, strict=True):
                told.setdefault((status, kind), set()).add(line)
    assert {key: lines for key, lines in told.items() if len(lines) > 1} == {}


def test_its_words_and_limits_are_those_of_the_code() -> None:
    schemas, parameters = (DOCUMENT["components"][part] for part in ("schemas", "parameters"))
    assert schemas["Outcome"]["enum"] == list(Outcome)
    for name, where in (("Passed", "properties"), ("RoutePassed", "properties"), ("Result", "properties")):
        assert schemas[name][where]["reason"]["enum"] == list(PassReason)
    assert schemas["Confirmed"]["properties"]["slot"]["maximum"] == SLOTS - 1
    headers = schemas["Headers"]["propertyNames"]
    assert headers["maxLength"] == HEADER_NAME
    assert set(headers["not"]["enum"]) == FAN_OUT
    assert f"at most {MOST_DEPTH} deep" in schemas["Headers"]["description"]
    assert set(schemas["Properties"]["properties"]) == set(NAMES) - {"user_id"}
    for item in ("TextItem", "Base64Item", "JsonItem"):
        assert set(schemas[item]["properties"]) == fields._FIELDS
    assert {
        schemas[item]["properties"]["payload_encoding"]["const"] for item in ("TextItem", "Base64Item", "JsonItem")
    } == set(fields._PAYLOADS)
    (publish,) = (operation for _, _, operation in operations() if operation["operationId"] == "publish")
    assert {p["name"].lower() for p in publish["parameters"] if p.get("name", "").startswith("Amqp-")} == {
        name.decode() for name in parsing._PROPERTIES if name.startswith(b"amqp-")
    }
    assert {p["name"] for p in publish["parameters"] if "name" in p} >= set(map(bytes.decode, TRACES))
    for parameter in (*publish["parameters"], *parameters.values()):
        assert parameter.get("schema", {}).get("maxLength", SHORT_STRING) == SHORT_STRING


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("headers", "user_id")])
def test_properties_are_bounded_as_the_code_bounds_them(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"]["Properties"]["properties"][name]
    if "maxLength" in schema:
        right, wrong = ["x" * schema["maxLength"]], ["x" * (schema["maxLength"] + 1)]
    else:
        right = [schema["minimum"], schema["maximum"]]
        wrong = [schema["minimum"] - 1, schema["maximum"] + 1]
    for value in right:
        encoded(name, value)
    for value in wrong:
        with pytest.raises(PropertyError):
            encoded(name, value)


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
