"""The rooms of the house and what each may import: one way, without a circle, and bytes apart from sockets."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ROOMS: dict[str, set[str]] = {
    "ring": set(),
    "proxy.outcome": set(),
    "proxy.republishes": set(),
    "proxy.wire": {"ring"},
    "proxy.settings": {"ring"},
    "proxy.process": {"ring", "proxy.settings"},
    "proxy.topology": {"ring", "proxy.settings"},
    "proxy.journal": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.process", "proxy.topology"),
    },
    "proxy.tracing": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.process", "proxy.topology"),
    },
    "proxy.routing": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.topology", "proxy.journal", "proxy.tracing"),
    },
    "proxy.publisher": {"proxy.outcome", "proxy.wire", "proxy.settings", "proxy.process", "proxy.routing"},
    "proxy.groups": {"proxy.settings", "proxy.topology"},
    "proxy.session": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.process", "proxy.topology"),
        *("proxy.republishes", "proxy.journal", "proxy.tracing", "proxy.routing"),
    },
    "proxy.groups.consuming": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.topology", "proxy.routing"),
        *("proxy.tracing", "proxy.publisher", "proxy.groups", "proxy.session"),
    },
    "proxy.http.formats": {"ring", "proxy.outcome", "proxy.wire", "proxy.topology"},
    "proxy.http.admission": {
        *("proxy.outcome", "proxy.settings", "proxy.topology", "proxy.routing", "proxy.http.formats"),
    },
    "proxy.http.sending": {
        *("ring", "proxy.outcome", "proxy.wire", "proxy.settings", "proxy.topology", "proxy.journal", "proxy.routing"),
        *("proxy.republishes", "proxy.tracing", "proxy.publisher", "proxy.http.formats", "proxy.http.admission"),
    },
    "proxy.http.endpoints": {
        *("proxy.outcome", "proxy.wire", "proxy.settings", "proxy.topology", "proxy.routing"),
        *("proxy.publisher", "proxy.http.formats", "proxy.http.admission", "proxy.http.sending"),
    },
    "proxy.http": {
        *("proxy.outcome", "proxy.settings", "proxy.routing"),
        *("proxy.http.formats", "proxy.http.admission", "proxy.http.sending", "proxy.http.endpoints"),
    },
    "proxy.http.admin": {
        *("ring", "proxy.outcome", "proxy.settings", "proxy.process", "proxy.topology", "proxy.journal"),
        *("proxy.routing", "proxy.publisher", "proxy.session", "proxy.http.formats", "proxy.http.admission"),
        "proxy.http.sending",
        *("proxy.groups", "proxy.tracing"),
    },
    "proxy.redrive": {
        *("proxy.wire", "proxy.settings", "proxy.process", "proxy.publisher", "proxy.groups.consuming"),
    },
    "proxy.commands": {
        *(
            "ring",
            "proxy.settings",
            "proxy.process",
            "proxy.topology",
            "proxy.journal",
            "proxy.groups",
            "proxy.tracing",
        ),
    },
    "proxy.shards": {
        *("ring", "proxy.settings", "proxy.process", "proxy.topology", "proxy.http", "proxy.http.formats"),
        "proxy.http.admission",
    },
    "proxy.reload": {
        *("proxy.settings", "proxy.process", "proxy.topology", "proxy.routing", "proxy.session", "proxy.http"),
        *("proxy.http.admission", "proxy.groups", "proxy.groups.consuming"),
    },
    "proxy.app": {
        *("proxy.groups", "proxy.groups.consuming", "proxy.reload"),
        *("ring", "proxy.settings", "proxy.process", "proxy.topology", "proxy.journal", "proxy.routing"),
        *("proxy.publisher", "proxy.session", "proxy.http", "proxy.http.admission", "proxy.http.sending"),
        *("proxy.http.admin", "proxy.tracing"),
    },
    "proxy.cli": {
        *("ring", "proxy.settings", "proxy.process", "proxy.app", "proxy.commands", "proxy.shards"),
        "proxy.redrive",
    },
    "proxy.__main__": {"proxy.cli"},
}
"""Each room, from the lowest floor up, and the rooms that it imports. All may ask `proxy` for its version."""

CIRCLES: set[frozenset[str]] = set()
"""Sets of modules that may import each other in a circle: none."""

IO_MODULES = {
    "proxy.wire": {"writing"},
    "proxy.settings": {"access_token", "files", "http_client", "tls"},
    "proxy.process": {"amqp_client", "logs"},
    "proxy.topology": {
        *("cluster", "entry_builder", "kept_rings", "lanes", "lookups", "management"),
        *("reader", "reading", "readings", "ring_cache", "scheduler", "upstreams", "users"),
    },
    "proxy.journal": {"journaling", "stream", "writer"},
    "proxy.tracing": {"export", "tracing"},
    "proxy.routing": {"forgetting"},
    "proxy.publisher": {"connection", "dial", "pool"},
    "proxy.groups": {"groups", "membership", "onlooker", "pause_log", "report", "running", "shard_readings"},
    "proxy.session": {
        "answer_deadlines",
        "flow",
        "kept",
        "listener",
        "session",
        "shared",
        "sockets",
        "waiter",
    },
    "proxy.groups.consuming": {"attendant", "dead_letters"},
    "proxy.http.formats": {"answers", "parsing", "problems"},
    "proxy.redrive": {"client", "command", "redrive"},
    "proxy.shards": {
        *("apply", "broker", "command", "drain", "fence", "fleet", "reading", "reshard", "retire", "retire_group"),
        "watch",
    },
    "proxy.http.endpoints": {"batch", "docs", "events", "management", "publish", "route", "urls"},
}
"""Modules that know of the event loop, threads, sockets or aiohttp; the others of these rooms take and give values."""

FREE_OF_IO = {"ring", "proxy.outcome", "proxy.republishes", *IO_MODULES}
"""Rooms in which whatever `IO_MODULES` does not name is free of I/O."""

IO = {
    *("asyncio", "concurrent", "http", "multiprocessing", "queue", "select", "selectors", "socket", "socketserver"),
    *("ssl", "subprocess", "threading", "_thread"),
}
"""Modules of the standard library that wait, or let others wait."""

PURE_PACKAGES = {"librt", "mypy_extensions", "mmh3", "msgspec", "numpy", "yarl"}
"""Packages that never do I/O."""

MAY_BESIDES = {"ring.contest": {"concurrent"}}
"""Threads that build a ring, while numpy has released the GIL."""

PIPELINE_MAY = {
    *("outcome", "process.identity"),
    *("publisher.channel", "publisher.connection", "publisher.dial", "publisher.protocol"),
    *("routing.counters", "routing.route"),
    *("settings.config", "settings.credentials", "settings.parse", "settings.sources", "settings.tls"),
    *("shards.document", "shards.shard"),
    *("topology.bindings", "topology.generations", "topology.lanes", "topology.management", "topology.reading"),
    *("wire.content", "wire.frames", "wire.properties"),
}
"""Modules of proxy for the pipeline: those that read bindings or topology files, or publish with confirms."""


def imports(source: str, package: str) -> Iterator[str]:
    """Yield the dotted name of every import in a module of `package`, also in functions and under TYPE_CHECKING.

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


def top(name: str) -> str:
    return name.partition(".")[0]


def read(*folders: str) -> dict[str, set[str]]:
    """Return each module of the folders, by its dotted name, with what it imports."""
    found = {}
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            package = ".".join(file.relative_to(ROOT).parent.parts)
            name = package if file.stem == "__init__" else f"{package}.{file.stem}"
            found[name] = set(imports(file.read_text(encoding="utf-8"), package))
    return found


OURS = read("ring", "proxy")
PIPELINE = read("pipeline")


def module_of(imported: str) -> str | None:
    """Return the module of ours that a dotted name begins with; None for what is not ours."""
    while imported and imported not in OURS:
        imported = imported.rpartition(".")[0]
    return imported or None


def room_of(module: str) -> str:
    """Return the room of a module: the longest that its name begins with."""
    return max((room for room in ROOMS if module == room or module.startswith(f"{room}.")), key=len, default=module)


def circles(arrows: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the largest sets of modules in which each can be reached from each other one."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            new = arrows.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    reach = {module: reached(module) for module in arrows}
    return {
        frozenset(other for other in reach[module] if module in reach.get(other, ()))
        for module in arrows
        if module in reach[module]
    }


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


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": set()}) == set()


def test_every_room_exists_and_every_module_has_one() -> None:
    assert {room for room in ROOMS if room not in OURS} == set()
    assert {module for module in OURS if room_of(module) not in ROOMS} == {"proxy"}
    named = {f"{room}.{name}" for room, names in IO_MODULES.items() for name in names}
    assert {module for module in (*named, *MAY_BESIDES, *set().union(*CIRCLES)) if module not in OURS} == set()
    assert {name for name in PIPELINE_MAY if f"proxy.{name}" not in OURS} == set()


def test_rooms_import_the_rooms_that_they_may() -> None:
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, imported in OURS.items():
        if module != "proxy":
            found[room_of(module)] |= {room_of(ours) for name in imported if (ours := module_of(name))}
    assert {room: rooms - {room, "proxy"} for room, rooms in found.items()} == ROOMS


def test_rooms_stand_on_lower_floors_only() -> None:
    order = list(ROOMS)
    upwards = {room: {other for other in may if order.index(other) > order.index(room)} for room, may in ROOMS.items()}
    assert {room for room, others in upwards.items() if others} == set()


def test_no_file_of_the_session_names_groups() -> None:
    """Groups stand behind the session's door, `proxy/session/interceptor.py`."""
    names = re.compile(r"group|shard|(?<!re)member|\blinks?\b|consuming", re.IGNORECASE)
    files = list((ROOT / "proxy" / "session").rglob("*.py"))
    assert len(files) > 30
    found = {
        (file.name, line.strip())
        for file in files
        for line in (file.name, *file.read_text(encoding="utf-8").splitlines())
        if names.search(line)
    }
    assert found == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = {
        module: {ours for name in imported if (ours := module_of(name)) and ours != module}
        for module, imported in OURS.items()
    }
    assert circles(arrows) == CIRCLES


def test_io_is_done_where_it_is_said_and_nowhere_else() -> None:
    pure = (sys.stdlib_module_names - IO) | PURE_PACKAGES
    doing: set[str] = set()
    while True:
        more = {
            module
            for module, imported in OURS.items()
            for name in imported
            if (ours in doing if (ours := module_of(name)) else top(name) not in pure | MAY_BESIDES.get(module, set()))
        }
        if more == doing:
            break
        doing = more
    said = {f"{room}.{name}" for room, names in IO_MODULES.items() for name in names}
    assert {module for module in doing if room_of(module) in FREE_OF_IO} == said


@pytest.mark.parametrize("package", ["ring", "proxy"])
def test_only_declared_packages_are_imported(package: str) -> None:
    """And nothing of the tests, the testbed or the pipeline; ring needs numpy and mmh3 at most."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["otel"]
    declared = {re.split("[^a-z0-9-]", line)[0].partition("-api")[0].replace("-", "_") for line in lines}
    packages = {"numpy", "mmh3", "librt", "mypy_extensions"} if package == "ring" else declared | {"ring", "proxy"}
    allowed = sys.stdlib_module_names | packages | {package}
    modules = {module: imported for module, imported in OURS.items() if top(module) == package}
    found = {
        (module, name)
        for module, imported in modules.items()
        for name in imported
        if top(name) not in allowed | MAY_BESIDES.get(module, set())
    }
    assert found == set()


def test_the_pipeline_takes_of_the_proxy_what_reads_bindings_and_publishes() -> None:
    found = {
        (module, ours.removeprefix("proxy."))
        for module, imported in PIPELINE.items()
        for name in imported
        if top(name) == "proxy" and (ours := module_of(name))
    }
    assert {name for _, name in found} <= PIPELINE_MAY
    allowed = ("pipeline.publish.", "pipeline.stream.", "pipeline.data.live", "pipeline.whatif.")
    assert {module for module, _ in found if not module.startswith(allowed)} == set()


def test_a_job_of_the_pipeline_takes_nothing_of_another() -> None:
    folders = {folder.name for folder in (ROOT / "pipeline").iterdir() if folder.is_dir()}
    shared: dict[str, set[str]] = {"data": set(), "stats": set(), "page": {"data", "stats"}, "stream": {"data"}}
    for module, imported in PIPELINE.items():
        folder = (*module.split("."), "")[1]
        if folder in folders:
            taken = {name.split(".")[1] for name in imported if name.startswith("pipeline.")} & folders
            assert taken <= shared.get(folder, set(shared)) | {folder}, module
