"""The modules that a command imports: a question to a sidecar does not wait until all of a sidecar is imported."""

import subprocess
import sys

import pytest

CODE = """
import sys
from proxy.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(sorted({"proxy.app", "numpy", "aiohttp", "aio_pika", "proxy.shards"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["run", "--help"],
        ["config", "--help"],
        ["explain", "orders", "a", "--sidecar", "no URL"],
        ["group", "orders", "--sidecar", "no URL"],
        ["group", "orders", "keys", "--sidecar", "no URL"],
    ],
)
def test_it_imports_what_it_needs_only(arguments: list[str]) -> None:
    found = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True)
    needed = "['numpy']" if arguments[0] == "explain" else "[]"
    assert found.stdout.splitlines()[-1] == needed, found
