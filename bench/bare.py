"""The least that an aiohttp service can do: read the body and answer 200. In a process of its own."""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from testbed import SetupError


@contextmanager
def running_bare(*, uvloop: bool) -> Iterator[tuple[str, int]]:
    """Start it on a free port, on uvloop if so told; gives its URL and pid."""
    command = [sys.executable, "-m", "bench.bare", "uvloop" if uvloop else "asyncio"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = process.stdout.readline().strip()
            if not port:
                raise SetupError("the bare handler did not start (see above)")
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


async def _answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b'{"outcome":"read"}', content_type="application/json")


async def _serve() -> None:
    app = web.Application()
    app.router.add_post("/", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kind = importlib.import_module(sys.argv[1])
    with asyncio.Runner(loop_factory=kind.new_event_loop) as loop:
        loop.run(_serve())
