"""Programs that people publish with: curl, as in a shell, and an aiohttp client, as in a service."""

import asyncio
import gzip
import hashlib
import json
import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.broker_api import DEADLINE_SECONDS, VirtualHost
from tests.integration.conftest import StartSidecar
from tests.integration.rings import owner
from tests.integration.sidecar import Sidecar, publish_path

QUEUES = ["q1", "q2", "q3"]


def curl(url: str, *arguments: str | Path, given: bytes = b"") -> tuple[int, bytes, str]:
    """The exit status, what was answered, and what curl told of its way there."""
    command = ["curl", "--silent", "--show-error", "--verbose", "--max-time", f"{DEADLINE_SECONDS:g}", *arguments, url]
    done = subprocess.run(command, input=given, capture_output=True, timeout=DEADLINE_SECONDS + 5)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def url_of(sidecar: Sidecar, vhost: VirtualHost, what: str = "publish", **more: str) -> str:
    return f"http://127.0.0.1:{sidecar.port}{publish_path('orders', vhost.name, what, **more)}"


def test_curl_publishes_text(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)

    status, answer, _ = curl(
        url_of(sidecar, vhost),
        *("--fail-with-body", "-H", "Routing-Key: customer 17", "-H", "Content-Type: application/json"),
        *("-H", "Amqp-Message-Id: 1", "--data", '{"order": 7}'),
    )

    assert status == 0
    receipt = json.loads(answer)
    assert (receipt["outcome"], receipt["destination"]["name"]) == ("confirmed", owner(QUEUES, "customer 17"))
    (message,) = vhost.drain(owner(QUEUES, "customer 17"))
    assert (message.body, message.properties["content_type"]) == (b'{"order": 7}', "application/json")
    assert message.properties["message_id"] == "1"


@pytest.mark.parametrize("arguments", [(), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue")])
def test_curl_publishes_a_file(
    sidecar: Sidecar, vhost: VirtualHost, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """A file of more than a megabyte is sent only once curl has asked whether it will be taken."""
    vhost.ring("orders", ["q"])
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "file").write_bytes(data)

    status, _, told = curl(
        url_of(sidecar, vhost, key="k"), "--fail-with-body", "--data-binary", f"@{tmp_path / 'file'}", *arguments
    )

    assert status == 0, told
    assert "HTTP/1.1 200 OK" in told
    if "Expect: 100-continue" in arguments:
        assert "HTTP/1.1 100 Continue" in told
    (message,) = vhost.drain("q")
    assert hashlib.sha256(message.body).digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("arguments", [(), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue")])
def test_curl_is_told_that_a_file_is_too_large(
    start_sidecar: StartSidecar, vhost: VirtualHost, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    vhost.ring("orders", ["q"])
    sidecar = start_sidecar(max_body="100000")
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)

    status, answer, told = curl(
        url_of(sidecar, vhost, key="k"), "--fail-with-body", "--data-binary", f"@{tmp_path / 'file'}", *arguments
    )

    assert status == 22, told
    assert json.loads(answer)["type"] == "urn:ringproxy:problem:too-large"
    assert vhost.drain("q") == []


def test_curl_publishes_lines_and_gzip(sidecar: Sidecar, vhost: VirtualHost, tmp_path: Path) -> None:
    vhost.ring("orders", QUEUES)
    lines = b"".join(b'{"key":"%d","payload":"%d"}\n' % (n, n) for n in range(2000))
    plain = ("--data-binary", "@-", "-H", "Content-Type: application/x-ndjson")

    for arguments, given in (
        (plain, lines),
        ((*plain, "-H", "Transfer-Encoding: chunked"), lines),
        ((*plain, "-H", "Content-Encoding: gzip"), gzip.compress(lines)),
    ):
        status, answer, told = curl(url_of(sidecar, vhost, "publish/batch"), *arguments, given=given)
        assert (status, json.loads(answer)["confirmed"]) == (0, 2000), told

    landed = {queue: len(messages) for queue, messages in vhost.drain_all().items()}
    assert sum(landed.values()) == 6000
    assert set(landed) == set(QUEUES)


async def test_a_service_publishes_with_aiohttp(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    url = url_of(sidecar, vhost)
    connector = aiohttp.TCPConnector(limit=32)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def publish(n: int) -> str:
            headers = {"Routing-Key": f"key {n}", "Amqp-Header-number": str(n)}
            async with session.post(url, data=b"%d" % n, headers=headers) as response:
                assert response.status == 200
                return str((await response.json())["destination"]["name"])

        queues = await asyncio.gather(*(publish(n) for n in range(500)))
        async with session.post(url, data=b"", headers={"Routing-Key": "k" * 300}) as response:
            assert (response.status, response.content_type) == (400, "application/problem+json")
            assert (await response.json())["detail"].startswith("Routing-Key: ")

    assert queues == [owner(QUEUES, f"key {n}") for n in range(500)]
    landed = await asyncio.to_thread(vhost.drain_all)
    told = {int(m.body): queue for queue, messages in landed.items() for m in messages}
    assert told == dict(enumerate(queues))


async def test_a_service_streams_batches_with_aiohttp(sidecar: Sidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)

    async def items(first: int) -> AsyncIterator[bytes]:
        for n in range(first, first + 1000):
            yield b'{"key":"%d","payload":"%d"}\n' % (n % 100, n)
            if n % 100 == 0:
                await asyncio.sleep(0)

    headers = {"Content-Type": "application/x-ndjson", "Prefer": "return=minimal"}
    async with aiohttp.ClientSession() as session:

        async def publish(first: int) -> int:
            async with session.post(
                url_of(sidecar, vhost, "publish/batch"), data=items(first), headers=headers
            ) as answer:
                return answer.status

        assert await asyncio.gather(*(publish(n * 1000) for n in range(4))) == [204] * 4

    landed = await asyncio.to_thread(vhost.drain_all)
    assert sorted(int(m.body) for messages in landed.values() for m in messages) == list(range(4000))


async def test_a_service_that_gives_up_waiting_harms_nobody(start_sidecar: StartSidecar, vhost: VirtualHost) -> None:
    vhost.ring("orders", QUEUES)
    sidecar = await asyncio.to_thread(start_sidecar)
    async with aiohttp.ClientSession() as session:

        async def publish(n: int, seconds: float) -> bool:
            timeout = aiohttp.ClientTimeout(total=seconds)
            try:
                async with session.post(
                    url_of(sidecar, vhost, key=f"{n}"), data=b"%d" % n, timeout=timeout
                ) as response:
                    await response.read()
                    return response.status == 200
            except TimeoutError:
                return False

        patient = [publish(n, DEADLINE_SECONDS) for n in range(100)]
        hasty = [publish(100 + n, 0.001 * (n % 20)) for n in range(200)]
        told = await asyncio.gather(*patient, *hasty)

    assert all(told[:100])
    landed = await asyncio.to_thread(vhost.drain_all)
    bodies = [int(m.body) for messages in landed.values() for m in messages]
    assert len(bodies) == len(set(bodies))
    assert {n for n, confirmed in enumerate(told) if confirmed} <= set(bodies)
    assert await asyncio.to_thread(sidecar.metric, "ringproxy_in_flight") == 0
