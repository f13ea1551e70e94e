"""A real Prometheus, Debian's, that scrapes sidecars each second."""

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from testbed.debian import ensure_package
from tests.integration.broker_api import DEADLINE_SECONDS, wait_until
from tests.integration.sidecar import Sidecar

RULES = Path(__file__).parents[2] / "deploy" / "alerts.yaml"


class Prometheus:
    """Who asks a running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now; the test fails where it is an error."""
        status, content = self._ask("POST", "/api/v1/query", urlencode({"query": expression}))
        assert status == 200, (expression, content)
        data = json.loads(content)["data"]
        assert data["resultType"] in ("vector", "scalar"), data
        result = data["result"]
        return [{"metric": {}, "value": result}] if data["resultType"] == "scalar" else list(result)

    def is_ready(self) -> bool:
        try:
            return self._ask("GET", "/-/ready")[0] == 200
        except ConnectionError:
            return False

    def _ask(self, method: str, path: str, body: str = "") -> tuple[int, str]:
        with closing(http.client.HTTPConnection(self._address, timeout=DEADLINE_SECONDS)) as connection:
            connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@contextmanager
def prometheus(folder: Path, sidecars: Sequence[tuple[Sidecar, Mapping[str, str]]]) -> Iterator[Prometheus]:
    """Run one with the rules of deploy/alerts.yaml; each sidecar has the labels that are given with it."""
    program = ensure_package("prometheus", "prometheus")
    targets = [{"targets": [f"127.0.0.1:{sidecar.admin_port}"], "labels": dict(labels)} for sidecar, labels in sidecars]
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "ringproxy", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        str(program),
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    asked = Prometheus(address)

    def answers() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        return asked.is_ready()

    try:
        wait_until("Prometheus answers", answers)
        yield asked
    finally:
        process.kill()
        process.wait()
