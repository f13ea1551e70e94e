"""The HTTP interface against its own document: schemathesis makes requests from it, right ones and wrong ones."""

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from proxy.http.endpoints.docs import openapi_document
from tests.integration.broker_api import VirtualHost
from tests.integration.openapi_hooks import LINES
from tests.integration.sidecar import Sidecar

pytestmark = pytest.mark.long

COMMAND = Path(sys.executable).with_name("st")
ROOT = Path(__file__).parents[2]

CONFIG = """
seed = 20261121
continue-on-failure = true
request-timeout = 20

[generation]
max-examples = 40
database = "none"
no-shrink = true
# Headers that mean nothing to it are nothing to refuse.
allow-extra-parameters = false
"""
"""Random requests for each operation, right and wrong; its limits are tried one by one besides."""

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "negative_data_rejection", "missing_required_header", "unsupported_method"),
    "allow_header_conformance",
)

LOOK_UPS = "route|openapi|docs"
"""Operations of which the document says all, so that `positive_data_acceptance` holds too. The document cannot say of a
publish that a key is given once, or that the exchange needs one: there, some must have been confirmed."""

REQUESTS = {"ManagementPublish"}
"""Schemas of requests in which there may be more than is told."""


def narrowed(vhost: str) -> Any:
    """The document, of exchanges that exist (and one that does not), where answers say nothing undocumented."""
    document = openapi_document()
    for name, schema in document["components"]["schemas"].items():
        if "properties" in schema and name not in REQUESTS:
            schema.setdefault("additionalProperties", False)
    parameters = document["components"]["parameters"]
    parameters["exchange"]["schema"]["enum"] = ["orders", "by header", "topic", "nonesuch"]
    parameters["vhost"] |= {"required": True, "example": vhost}
    for name in ("vhost", "pathVhost"):
        parameters[name]["schema"]["enum"] = [vhost]
        parameters[name]["example"] = vhost
    batch = document["paths"]["/v1/exchanges/{exchange}/publish/batch"]["post"]["requestBody"]["content"]
    for kind in LINES:
        batch[kind] = {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}}
    # It does not compress.
    parameters["contentEncoding"]["schema"]["enum"].remove("gzip")
    return document


@pytest.fixture
def tried(sidecar: Sidecar, vhost: VirtualHost) -> Iterator[Sidecar]:
    """A sidecar with an exchange of each kind, none of which drops anything; as well after as before."""
    vhost.ring("orders", ["q1", "q2"])
    vhost.ring("by header", ["q1", "q2"], hash_header="customer")
    vhost.exchange("topic", "topic")
    vhost.bind("topic", "q1", "#")
    assert sidecar.publish("orders", "before", vhost=vhost.name).status == 200
    yield sidecar
    assert sidecar.publish("orders", "after", vhost=vhost.name).status == 200
    sidecar.check_log()


def answers_as_documented(document: Any, sidecar: Sidecar, folder: Path, operations: str, *options: str) -> None:
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text(CONFIG)
    connects = sidecar.metric("ringproxy_broker_connects_total")
    confirmed = sidecar.metric("ringproxy_publishes_total", ingress="http", outcome="confirmed")
    checks = (*CHECKS, "positive_data_acceptance") if operations == LOOK_UPS else CHECKS
    told = subprocess.run(
        [
            *(COMMAND, "--no-color", "run", "openapi.json", f"--url=http://127.0.0.1:{sidecar.port}"),
            *(f"--checks={','.join(checks)}", f"--include-operation-id-regex=^({operations})$", *options),
        ],
        cwd=folder,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.integration.openapi_hooks", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert sidecar.metric("ringproxy_broker_connects_total") == connects
    more = sidecar.metric("ringproxy_publishes_total", ingress="http", outcome="confirmed") - confirmed
    assert (more > 0) is (operations != LOOK_UPS)


@pytest.mark.parametrize("operations", ["publish", "publishBatch", LOOK_UPS])
def test_it_answers_as_documented(tried: Sidecar, vhost: VirtualHost, tmp_path: Path, operations: str) -> None:
    answers_as_documented(narrowed(vhost.name), tried, tmp_path, operations)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "structured"])
def test_it_answers_events_as_documented(tried: Sidecar, vhost: VirtualHost, tmp_path: Path, binary: bool) -> None:
    document = narrowed(vhost.name)
    operation = document["paths"]["/v1/exchanges/{exchange}/events"]["post"]
    attributes = [p for p in operation["parameters"] if p.get("name", "").startswith("ce-")]
    assert len(attributes) == 4
    for parameter in attributes:
        if binary:
            parameter |= {"required": True, "example": "1.0"}
        else:
            operation["parameters"].remove(parameter)
    document["components"]["parameters"]["key"]["example"] = "customer-17"
    content = operation["requestBody"]["content"]
    operation["requestBody"]["content"] = {kind: of for kind, of in content.items() if (kind == "*/*") is binary}

    answers_as_documented(document, tried, tmp_path, "publishEvents")


def test_it_answers_as_documented_in_the_management_apis_manner(
    tried: Sidecar, vhost: VirtualHost, tmp_path: Path
) -> None:
    vhost.api.ask("PUT", "users", "fuzz", body={"password": "fuzz", "tags": ""})
    vhost.permit("fuzz")
    message = {"properties": {}, "routing_key": "k", "payload": "", "payload_encoding": "string"}
    path = f"/api/exchanges/{quote(vhost.name, safe='')}/orders/publish"
    login = {"Authorization": "Basic " + b64encode(b"fuzz:fuzz").decode()}
    try:
        assert tried.ask("POST", path, json.dumps(message).encode(), login).receipt() == {"routed": True}
        answers_as_documented(narrowed(vhost.name), tried, tmp_path, "publishAsManagement", "--auth=fuzz:fuzz")
    finally:
        vhost.api.ask("DELETE", "users", "fuzz")
