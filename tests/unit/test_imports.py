"""Imports go one way: ring <- proxy's pure modules <- proxy's modules that do I/O."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE = (
    "outcome",
    "topology",
    "belief",
    "declared",
    "selection",
    "router",
    "tally",
    "counts",
    "listings",
    "overlays",
    "changes",
    "config",
    "values",
    "watched",
    "credentials",
    "access",
)
"""Modules of proxy that decide and never wait: no event loop, no network."""

RING_MAY = {"ring/contest.py": {"concurrent"}, "ring/slotwise.py": {"cython"}}
"""Threads, and a loop that they run in without the GIL."""

COMPILER = {"librt", "mypy_extensions"}
"""What compiled modules speak to, and types; no I/O."""

PURE_MAY = {"config": {"yarl"}, "values": {"yarl"}, "credentials": {"yarl"}}
"""Of what is neither the standard library, ring nor pure."""

HTTP_PURE = ("message", "decoding", "scanning", "items", "fields", "cloudevents", "schemas", "openapi", "page")
"""Modules of proxy.http that turn bytes into messages, or describe the interface, and know nothing of a request."""

LEGS = ("legs", "overdue", "held", "shared", "session", "brokers", "listener", "link", "writing")
"""Modules of proxy.amqp that know of sockets; the others take bytes and give bytes."""

IO = {
    "asyncio",
    "concurrent",
    "http",
    "multiprocessing",
    "queue",
    "select",
    "selectors",
    "socket",
    "socketserver",
    "ssl",
}
IO |= {"subprocess", "threading", "_thread"}


def imports(source: str, package: str) -> Iterator[str]:
    """The dotted name of every import in a module of `package`, also in functions and under TYPE_CHECKING.

    `from a import b` counts as `a.b`, since b may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                up = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*up, *([module] if module else [])])
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id="__import__") | ast.Attribute(attr="import_module")):
                yield "<dynamic>"
            case _:
                pass


def imports_of(file: Path) -> set[str]:
    package = ".".join(file.relative_to(ROOT).parent.parts)
    return set(imports(file.read_text(encoding="utf-8"), package))


def top(name: str) -> str:
    return name.partition(".")[0]


def prefix(name: str) -> str:
    """The module that a dotted name begins with, in proxy or one of its packages."""
    package = name.startswith(("proxy.amqp.", "proxy.http.", "proxy.journal."))
    return ".".join(name.split(".")[: 3 if package else 2])


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def title(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_imports_are_seen_wherever_they_stand() -> None:
    source = """
import a.b, c as d
from e import f, g
from . import h
from .i import j
from .. import k
def _():
    import l
    if True:
        from m.n import o
__import__("p")
importlib.import_module("q")
"""
    assert set(imports(source, "pkg.sub")) == {
        *("a.b", "c", "e.f", "e.g", "pkg.sub.h", "pkg.sub.i.j", "pkg.k", "l", "m.n.o", "<dynamic>"),
    }


@pytest.mark.parametrize("file", modules("ring"), ids=title)
def test_ring_imports_the_standard_library_numpy_mmh3_and_itself(file: Path) -> None:
    allowed = (sys.stdlib_module_names - IO) | COMPILER | {"numpy", "mmh3", "ring"} | RING_MAY.get(title(file), set())
    assert {name for name in imports_of(file) if top(name) not in allowed} == set()


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_io_and_only_pure_modules(name: str) -> None:
    allowed = (sys.stdlib_module_names - IO) | {"ring"} | PURE_MAY.get(name, set())
    pure = {f"proxy.{module}" for module in PURE}
    for imported in imports_of(ROOT / "proxy" / f"{name}.py"):
        module = ".".join(imported.split(".")[:2])
        assert top(imported) in allowed or module in pure, f"proxy/{name}.py imports {imported}"


@pytest.mark.parametrize("name", HTTP_PURE)
def test_what_makes_messages_of_bytes_knows_nothing_of_http(name: str) -> None:
    allowed = (sys.stdlib_module_names - IO) | {"ring"}
    ours = {"proxy.__version__", *(f"proxy.{module}" for module in PURE)}
    ours |= {f"proxy.http.{other}" for other in HTTP_PURE} | {f"proxy.amqp.{other.stem}" for other in SANS_IO}
    for imported in imports_of(ROOT / "proxy" / "http" / f"{name}.py"):
        assert top(imported) in allowed or prefix(imported) in ours, f"proxy/http/{name}.py imports {imported}"


SANS_IO = [file for file in modules("proxy/amqp") if file.stem not in LEGS]
HOT_JOURNAL = ROOT / "proxy" / "journal" / "buffer.py"
"""What the hot path knows of the journal."""


@pytest.mark.parametrize("file", [*SANS_IO, HOT_JOURNAL], ids=title)
def test_amqp_takes_bytes_and_gives_bytes_but_for_its_legs(file: Path) -> None:
    allowed = (sys.stdlib_module_names - IO) | COMPILER | {"ring"}
    ours = {"proxy.__version__", *(f"proxy.{module}" for module in PURE)}
    ours |= {f"proxy.amqp.{other.stem}" for other in SANS_IO} | {"proxy.journal.buffer"}
    for imported in imports_of(file):
        assert top(imported) in allowed or prefix(imported) in ours, f"{title(file)} imports {imported}"


@pytest.mark.parametrize("file", modules("proxy"), ids=title)
def test_proxy_imports_what_the_distribution_declares(file: Path) -> None:
    """And nothing of the tests or the testbed, nor what only these need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split("[^a-z0-9-]", line)[0].replace("-", "_") for line in project["dependencies"]}
    allowed = sys.stdlib_module_names | declared | {"ring", "proxy"}
    assert {name for name in imports_of(file) if top(name) not in allowed} == set()


@pytest.mark.parametrize("file", modules("proxy"), ids=title)
def test_only_the_command_imports_the_app_only_the_app_http_and_only_who_publishes_amqp(file: Path) -> None:
    package = ".".join(file.relative_to(ROOT).parent.parts)
    users = {
        "proxy.app": {"proxy/cli.py"},
        "proxy.cli": {"proxy/__main__.py"},
        "proxy.http": {"proxy/app.py"},
        "proxy.amqp": {"proxy/app.py", "proxy/http/admin/metrics.py", "proxy/publisher/pool.py"},
    }
    if package in ("proxy.http", "proxy.journal"):
        users["proxy.amqp"].add(title(file))
    for imported in imports_of(file):
        module = ".".join(imported.split(".")[:2])
        if module in users and module != package:
            assert title(file) in users[module], f"{title(file)} imports {imported}"


PIPELINE_MAY = {
    *("config", "credentials", "management", "outcome", "reading", "tally", "tls", "topology", "values"),
    *(f"amqp.{name}" for name in ("brokers", "content", "confirm_channel", "link", "properties", "routes")),
}
"""Of proxy: what reads bindings, and the wire code that publishes with confirms. Nothing of a sidecar that runs."""


@pytest.mark.parametrize("file", modules("pipeline"), ids=title)
def test_the_pipeline_takes_of_the_proxy_what_reads_bindings_and_publishes(file: Path) -> None:
    ours = {f"proxy.{module}" for module in PIPELINE_MAY}
    found = {name for name in imports_of(file) if top(name) == "proxy"}
    assert {name for name in found if prefix(name) not in ours} == set()
    allowed = ("pipeline/publish/", "pipeline/stream/", "pipeline/live.py", "pipeline/whatif/present.py")
    assert title(file).startswith(allowed) or not found


@pytest.mark.parametrize("file", [*modules("ring"), *modules("proxy")], ids=title)
def test_nothing_of_a_sidecar_imports_the_pipeline(file: Path) -> None:
    assert "pipeline" not in {top(name) for name in imports_of(file)}
