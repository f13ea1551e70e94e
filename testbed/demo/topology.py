"""The demo's exchange from a file: `ring-proxy topology`, and a user who has the rights that its plan prints."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

from yarl import URL

from testbed import SetupError
from testbed.broker import Broker
from testbed.demo.world import request

WRITER, PASSWORD = "ringproxy-demo-writer", "demo"
"""The user as whom all programs publish through the sidecar."""


LONGEST_LINE = 1024 * 1024
"""The most bytes of one line that the command prints."""


def may_write_directly(line: str) -> bool:
    """Return whether a line of a plan's rights lets its user publish to queues through the default exchange."""
    *_, write, _ = shlex.split(line)
    return re.search(write, "amq.default") is not None


class Topology:
    """One exchange in a virtual host, made and changed from a file."""

    def __init__(self, broker: Broker, vhost: str, exchange: str, file: Path, queue_type: str = "classic") -> None:
        """Take the file, which is written anew before each change."""
        self._broker, self._vhost, self._exchange, self._file = broker, vhost, exchange, file
        self._queue_type = queue_type

    def write(self, weights: Mapping[str, int], retiring: Iterable[str] = ()) -> str:
        """Write the file for shards of these weights, and return its text."""
        numbers = [int(queue.rpartition(".")[2]) for queue in weights]
        lines = ["[[exchange]]", f'name = "{self._exchange}"', f'vhost = "{self._vhost}"', f"shards = {numbers}"]
        if leaving := [int(queue.rpartition(".")[2]) for queue in retiring]:
            lines.append(f"retiring = {leaving}")
        lines.append(f'queue_type = "{self._queue_type}"')
        for number, weight in zip(numbers, weights.values(), strict=True):
            if weight != 1:
                lines += ["", "[[exchange.shard]]", f"number = {number}", f"weight = {weight}"]
        text = "\n".join(lines) + "\n"
        self._file.write_text(text)
        return text

    async def plan(self) -> Mapping[str, Any]:
        """Return the plan of the file, as JSON has it."""
        return dict(json.loads(await self._run("plan", "--json", str(self._file), statuses=(0, 1))))

    async def apply(self) -> str:
        """Do what the plan says, and return the lines of progress."""
        return await self._run("apply", str(self._file))

    async def apply_ordered(self, sidecars: Iterable[str], tell: Callable[[str], None]) -> None:
        """Change the shards with each key's order kept. `sidecars` are the URLs of all admin listeners.

        `tell` gets each line of progress as it comes.
        """
        flags = [f"--sidecar={url}" for url in sidecars]
        await self._run("apply", "--ordered", *flags, str(self._file), tell=tell)

    async def retire(self, queue: str, sidecar: str) -> str:
        """Take a shard off the ring once its sidecar, by the URL of its admin listener, knows; its messages stay."""
        return await self._run(
            "retire", "--keep", f"--sidecar={sidecar}", f"--vhost={self._vhost}", self._exchange, queue
        )

    async def permit_writer(self, rights: Iterable[str]) -> str:
        """Make `WRITER` with the rights that a plan prints for publishers, and return the line that says them."""
        (line,) = (each for each in rights if shlex.split(each)[4] == "WRITER")
        *_, configure, write, read = shlex.split(line)
        vhost = quote(self._vhost, safe="")
        body = {"configure": configure, "write": write, "read": read}
        await asyncio.to_thread(
            request, self._broker, "PUT", f"/api/users/{WRITER}", {"password": PASSWORD, "tags": ""}
        )
        await asyncio.to_thread(request, self._broker, "PUT", f"/api/permissions/{vhost}/{WRITER}", body)
        return line

    async def forget_writer(self) -> None:
        """Delete `WRITER`."""
        await asyncio.to_thread(request, self._broker, "DELETE", f"/api/users/{WRITER}", None)

    async def _run(
        self, *arguments: str, statuses: tuple[int, ...] = (0,), tell: Callable[[str], None] = lambda _: None
    ) -> str:
        part, *others = arguments
        urls = [
            f"--broker-url={URL(self._broker.amqp_url).with_path('/') / quote(self._vhost, safe='')}",
            f"--management-url={self._broker.management_url}",
        ]
        command = [sys.executable, "-m", "proxy", "topology", part, *urls, *others]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, limit=LONGEST_LINE, process_group=0
        )
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = [], asyncio.create_task(process.stderr.read())
        try:
            async for line in process.stdout:
                output.append(line.decode())
                tell(output[-1].rstrip("\n"))
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            told = (await errors).decode()
        if status not in statuses:
            raise SetupError(f"ring-proxy topology {part} ended with {status}: {told}")
        return "".join(output)
