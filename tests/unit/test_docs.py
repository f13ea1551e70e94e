"""The documents say what the code has, no less and no more."""

import json
import re
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path
from statistics import mean

import numpy as np

from proxy.cli import COMMANDS, LOGIN, STATUSES, parser
from proxy.commands import pause
from proxy.commands.operate import ACTS
from proxy.commands.pause import VERBS
from proxy.groups.report import _WORDS
from proxy.http.admin.metrics import ProxyCollector
from proxy.http.admission.limits import Limits
from proxy.http.endpoints.docs import openapi_document
from proxy.http.formats.problems import _TITLES
from proxy.journal.journaling import Journaling
from proxy.outcome import Outcome
from proxy.process.identity import of_job, of_sidecar
from proxy.publisher.dial import Brokers
from proxy.publisher.pool import Publisher
from proxy.redrive import command as redrive
from proxy.routing.counters import Counts
from proxy.routing.routes import RouteTables
from proxy.session.end import End
from proxy.session.listener import Listener
from proxy.session.shared import Shared
from proxy.session.state import TRANSITIONS, Phase
from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.settings.patterns import Selection
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import Sources, field_names, groups
from proxy.shards.command import PARTS
from proxy.shards.watch import Watch
from proxy.topology.management import Management
from proxy.topology.reader import Reader
from proxy.topology.readings import Readings
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import PassReason, Router
from proxy.tracing.tracing import Tracing
from ring.destination import Destination
from ring.hashing import hash64, slot_of
from ring.ring import Ring
from ring.scores import draws, slot_streams
from tests.unit.test_imports import ROOMS

ROOT = Path(__file__).parents[2]
REFERENCE = {page.stem: page.read_text() for page in (ROOT / "docs/reference").glob("*.md")}
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
CODE = "ring", "proxy", "pipeline", "testbed", "bench", "tests"
PATH = rf"(?:{'|'.join(CODE)}|deploy|docs)/[\w./-]+"


def architecture(title: str) -> str:
    """A section of docs/architecture.md, up to the next heading."""
    return re.split(r"^## ", ARCHITECTURE.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def first_cells(text: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)`", text, flags=re.M))


def sections(page: str, level: str) -> dict[str, str]:
    """The sections of a page of the reference by their titles, of the headings of one level, such as `##`."""
    parts = re.split(r"^#+ ", REFERENCE[page], flags=re.M)
    titles = re.findall(rf"^{level} (.*)$", REFERENCE[page], flags=re.M)
    return {title: text for title in titles for text in parts if text.startswith(f"{title}\n")}


def test_every_setting_is_documented_in_its_group_and_no_other() -> None:
    tables = {title: first_cells(text) for title, text in sections("settings", "##").items()}
    assert {title: names for title, names in tables.items() if names} == {
        t: set(names) for t, names in groups().items()
    }
    assert first_cells(REFERENCE["settings"]) == set(field_names())


def test_defaults_are_the_documented_ones() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", REFERENCE["settings"], flags=re.M))
    defaults = Settings()
    for name, text in documented.items():
        value = getattr(defaults, "pass_" if name == "pass" else name)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) and not hasattr(value, "port") else str(value)
        shown = shown.lower() if isinstance(value, bool) else shown
        assert text == (f"{value:g}" if isinstance(value, float) else shown), name


def parsers() -> dict[str, ArgumentParser]:
    """The parser of each command, by its name."""
    (commands,) = (action for action in parser()._actions if isinstance(action, _SubParsersAction))
    return dict(commands.choices)


def command_section(title: str) -> str:
    """A section of docs/reference/commands.md, without its examples, up to the next heading."""
    text = re.sub(r"^```.*?^```$", "", REFERENCE["commands"], flags=re.M | re.S)
    return re.split(r"^## ", text.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def arguments_of(command: ArgumentParser) -> list[str]:
    """The names of a command's arguments, also of those that may be left out; and of its parts, if it must have one."""
    given = (each for each in command._actions if not each.option_strings)
    return [str(each.metavar) for each in given if each.required or not isinstance(each, _SubParsersAction)]


def flags_of(command: ArgumentParser) -> set[str]:
    return {flag for action in command._actions for flag in action.option_strings}


def statuses_of(section: str) -> set[int]:
    return {int(status) for status in re.findall(r"^\| (\d+) \|", section, flags=re.M)}


def test_every_command_is_documented_and_no_other() -> None:
    assert re.findall(r"^## ring-proxy (\S+)$", REFERENCE["commands"], flags=re.M) == list(parsers())


def test_every_flag_and_argument_is_documented_and_no_other() -> None:
    of_settings = {f"--{name.replace('_', '-')}" for name in field_names()}
    everywhere = set(re.findall(r"`(-[a-z-]+)`", command_section("All commands")))
    assert everywhere == flags_of(parser())
    for name, command in parsers().items():
        section = command_section(f"ring-proxy {name}")
        flags = flags_of(command)
        if "--broker-url" in flags:
            assert of_settings <= flags
            assert "each [setting](settings.md) is a flag" in section
            flags -= of_settings
        assert {cell for cell in first_cells(section) if cell.startswith("-")} == flags - everywhere, name
        synopsis = rf"`ring-proxy {name}((?: [A-Z]+)*)`"
        assert {told.strip() for told in re.findall(synopsis, REFERENCE["commands"])} - {""} == {
            " ".join(arguments_of(command))
        } - {""}


def test_every_exit_status_is_documented_and_no_other() -> None:
    assert statuses_of(command_section("All commands")) == set(STATUSES)
    for command in COMMANDS:
        assert statuses_of(command_section(f"ring-proxy {command.name}")) == set(command.statuses), command.name


def test_every_part_of_topology_is_documented_with_its_flags_and_exit_statuses() -> None:
    page = re.sub(r"^```.*?^```$", "", REFERENCE["topology"], flags=re.M | re.S)
    assert re.findall(r"^## ring-proxy topology (\S+)$", page, flags=re.M) == [part.name for part in PARTS]
    for part in PARTS:
        section = re.split(r"^## ", page.split(f"## ring-proxy topology {part.name}\n", 1)[1], maxsplit=1, flags=re.M)[
            0
        ]
        command = ArgumentParser(add_help=False)
        part.add_arguments(command)
        assert {cell for cell in first_cells(section) if cell.startswith("-")} == flags_of(command), part.name
        assert f"`ring-proxy topology {' '.join([part.name, *arguments_of(command)])}`" in section
        assert statuses_of(section) == set(part.statuses), part.name
    flags = {f"--{name.replace('_', '-')}" for part in PARTS for name in part.settings}
    assert flags <= set(re.findall(r"`(--[a-z-]+)`", page.split("## The parts")[1]))


def test_the_parts_of_group_are_documented() -> None:
    (parts,) = (each for each in parsers()["group"]._actions if isinstance(each, _SubParsersAction))
    told = command_section("ring-proxy group")
    operating = set(re.findall(r"^\| `([a-z-]+(?: [A-Z]+)+)` \|", told, flags=re.M))
    assert operating == {" ".join([act, *arguments_of(parts.choices[act])]) for act in ACTS}
    others = {" ".join([name, *arguments_of(part)]) for name, part in parts.choices.items() if name not in set(ACTS)}
    assert set(re.findall(r"ring-proxy group EXCHANGE ([a-z][^`\n]*)", REFERENCE["commands"])) == others
    sections = {name: command_section(f"ring-proxy group EXCHANGE {name}") for name in ("redrive", "pause")}
    sections["resume"] = sections["pause"]
    of_settings = {f"--{name.replace('_', '-')}" for name in LOGIN}
    for name, part in parts.choices.items():
        flags, section = flags_of(part) - {"-h", "--help"}, sections.get(name, told)
        assert flags - of_settings <= set(re.findall(r"`(--[a-z-]+)`", section)), name
        assert not flags & of_settings or of_settings <= flags, name
        if name in sections:
            assert {cell for cell in first_cells(section) if cell.startswith("-")} == flags - of_settings
    assert all(f"`{verb}`" in sections["pause"] for verb in VERBS)
    assert of_settings <= set(re.findall(r"`(--[a-z-]+)`", sections["redrive"]))
    assert statuses_of(sections["redrive"]) == {*redrive.STATUSES, 2}
    assert statuses_of(sections["pause"]) == {*pause.STATUSES, 2}


def test_every_key_of_a_topology_file_is_documented_and_no_other() -> None:
    schema = json.loads((ROOT / "proxy/shards/schema.json").read_text())
    for table, title in (("exchange", "[[exchange]]"), ("shard", "[[exchange.shard]]")):
        rows = REFERENCE["topology"].split(f"| key of `{title}` |", 1)[1].split("\n\n", 1)[0]
        assert set(re.findall(r"^\| `(\w+)` \|", rows, flags=re.M)) == set(schema["$defs"][table]["properties"]) - {
            "shard"
        }


async def test_every_metric_is_documented_and_no_other(tmp_path: Path) -> None:
    router = Router(300, False)
    dial = Brokers(Settings().brokers, None, 1).dial
    publisher = Publisher(dial, lambda: ("", ""), connections=1, connect_timeout=1, confirm_timeout=1)
    async with Management(Settings().management_url, 1) as api:
        selection = Selection(["*"], [], [])
        reader = Reader(api, router, selection, settle_time=2)
        scheduler = Scheduler(reader, router, interval=15)
        counts = Counts()
        tables = RouteTables(router, selection, counts.counter_table["amqp"], lambda _: "", lambda _: None)
        listener = Listener(
            Shared(tables, Readings(scheduler, reader.identity, 1), dial, frozenset(), counts.amqp_latency.add, 1), 1
        )
        settings = Settings(journal_dir=tmp_path, trace_sample=0.0)
        files, limits = Files(settings), Limits(1, 1)
        journaling = Journaling(settings, files)
        in_force = SettingsInForce(Sources(None, {}, {}))
        parts = counts, router, scheduler, reader, publisher, listener, journaling, limits, files, None
        families = list(ProxyCollector(*parts, Tracing(settings), in_force).collect())
    suffix = {"counter": "_total", "info": "_info"}
    names = {family.name + suffix.get(family.type, "") for family in families}
    assert names == {cell for cell in first_cells(REFERENCE["metrics"]) if cell.startswith("ringproxy_")}


def test_every_http_endpoint_is_documented_and_no_other() -> None:
    paths = re.findall(r"`((?:GET|POST) /[^`?]*)", REFERENCE["http"])
    described = {
        f"{method.upper()} {path}" for path, methods in openapi_document()["paths"].items() for method in methods
    }
    # The names of a path's parts are the document's own.
    assert {re.sub(r"{[a-z]+}", "{}", path) for path in paths} == {
        re.sub(r"{[a-z]+}", "{}", path) for path in described
    }


def test_every_problem_outcome_and_pass_reason_is_documented() -> None:
    assert set(_TITLES) == set(re.findall(r"^\| \d{3} \| `([a-z-]+)`", REFERENCE["http"], flags=re.M))
    tables = {title: first_cells(text) for title, text in sections("metrics", "###").items()}
    assert tables["Ends of sessions"] == {end.value for end in End}
    assert tables["Reasons to pass"] == set(PassReason)
    assert tables["Outcomes"] == set(Outcome)


def test_the_table_of_rooms_is_in_the_order_of_the_rules() -> None:
    rooms = first_cells(architecture("The rooms")) | {"proxy/cli.py"}
    named = [room.rstrip("/").removesuffix(".py").replace("/", ".") for room in rooms]
    assert set(named) == set(ROOMS) - {"proxy.__main__"}
    listed = re.findall(r"^\| `([^`]+)`", architecture("The rooms"), flags=re.M)
    order = [room.rstrip("/").removesuffix(".py").replace("/", ".") for room in listed]
    assert order == [room for room in ROOMS if room in order]


def test_the_table_of_a_sessions_states_is_the_one_that_runs() -> None:
    text = architecture("The states of a session")
    rows = re.findall(r"^\| ([A-Z]+) \| [^|]+ \| ([^|]+) \|$", text, flags=re.M)
    told = {phase: set(following.replace("none", "").replace(",", " ").split()) for phase, following in rows}
    assert told == {phase.name: {other.name for other in TRANSITIONS[phase]} for phase in Phase}


def anchors(document: Path) -> set[str]:
    """Return the names of a page's headings in links: in small letters, hyphens for spaces, no other signs."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_paths_in_the_documents_exist() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for file, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
            target = document.parent / file if file else document
            assert target.exists(), f"{document.name}: {file}"
            assert not anchor or anchor in anchors(target), f"{document.name}: {file}#{anchor}"
        for path in re.findall(rf"`({PATH})`|(?<![\w./])({PATH}\.py)\b", text):
            assert (ROOT / "".join(path)).exists(), f"{document.name}: {path}"


def test_every_reason_why_a_shard_has_yet_to_move_is_in_the_runbook_and_no_other() -> None:
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    section = page.partition("\n## Group unbalanced\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", section, flags=re.M)
    assert sorted(rows) == sorted(words.replace("{unacked}", "...") for words in _WORDS.values())


def test_every_metric_of_the_watch_is_documented_and_no_other() -> None:
    told = {family.name: family.type for family in Watch(Settings(), Path("topology.toml")).registry.collect()}
    names = {f"{name}_total" if kind == "counter" else name for name, kind in told.items()}
    assert names == set(re.findall(r"^\| `(ringproxy_\w+)`", REFERENCE["topology"], flags=re.M))


def test_metrics_alerts_and_rules_that_pages_name_exist() -> None:
    pages = REFERENCE["metrics"] + REFERENCE["topology"] + REFERENCE["pipeline"]
    metrics = set(re.findall(r"^\| `(ringproxy_\w+)`", pages, flags=re.M))
    rules = (ROOT / "deploy/alerts.yaml").read_text()
    for document in DOCUMENTS:
        for name in re.findall(r"\bringproxy_[a-z_]+[a-z]\b(?![_(*])", document.read_text()):
            known = name in metrics or re.sub(r"_(bucket|sum|count)$", "", name) in metrics
            assert known or name in (*of_sidecar(), *of_job()), f"{document.name}: {name}"
        for name in re.findall(r"\bRingproxy[A-Z]\w+|(?<!urn:)\bringproxy:[a-z_]+:\w+", document.read_text()):
            assert re.search(rf"(alert|record): {name}$", rules, flags=re.M), f"{document.name}: {name}"


def test_the_readme_and_the_architecture_are_short_and_the_first_pages_have_one_drawing() -> None:
    readme = (ROOT / "README.md").read_text()
    index = (ROOT / "docs/index.md").read_text()
    assert len(readme.splitlines()) < 90
    assert readme.count("\n```mermaid\n") == index.count("\n```mermaid\n") == 1
    assert "![" not in readme
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", index) == ["images/keys-that-move.svg"]
    assert len(ARCHITECTURE.splitlines()) < 200


def test_nothing_cites_notes_that_are_not_in_the_repository() -> None:
    for path in (*DOCUMENTS, *(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))):
        assert not re.search(r"\bDESIG[N]\b|\bSTYL[E]\.md\b", path.read_text()), path


def test_the_draws_in_the_explanation_of_the_ring_are_this_codes() -> None:
    text = (ROOT / "docs/explanation/ring.md").read_text()
    queues = [Destination("queue", f"orders.{n}") for n in (1, 2, 3, 4)]
    three, four = (Ring.build(dict.fromkeys(queues[:count], 1)) for count in (3, 4))
    keys = re.findall(r"^\| `([\w-]+)` \| \d+ \|", text, flags=re.M)
    assert keys
    for key in keys:
        slot = slot_of(key.encode())
        seeds = np.array([hash64(f"queue\0{queue.name}".encode()) for queue in queues], dtype=np.uint64)
        drawn = [f"{draw / 2**64:.3f}" for draw in draws(np.full(4, slot_streams(np.array([slot]))[0]), seeds).tolist()]
        before, after = three.owner(slot), four.owner(slot)
        assert f"| `{key}` | {slot} | {' | '.join(drawn[:3])} | {before.name} |" in text
        assert f"| `{key}` | {before.name}, {drawn[queues.index(before)]} | {drawn[3]} | {after.name} |" in text
        assert f'["{key}"] --> ' in text
        assert f'["slot {slot:,}"]' in text


def test_the_share_of_moved_keys_in_the_explanation_of_the_ring_is_this_codes() -> None:
    queues = [Destination("queue", f"q{n}") for n in range(10)]
    keys = [f"key-{n}".encode() for n in range(3000)]
    ring = Ring.build(dict.fromkeys(queues, 1))

    def moved(other: Ring) -> float:
        return sum(ring.owner_of(key) != other.owner_of(key) for key in keys) / len(keys)

    removed = [moved(ring.changed({q: 1 for q in queues if q != gone})) for gone in queues]
    more = moved(ring.changed({**dict.fromkeys(queues, 1), Destination("queue", "q10"): 1}))
    row = f"| ringproxy | {mean(removed):.1%} | {min(removed):.1%} to {max(removed):.1%} | {more:.1%} |"
    assert row in (ROOT / "docs/explanation/ring.md").read_text()
    assert row in (ROOT / "bench/results/keys-4.3.md").read_text()


def test_the_keys_that_move_natively_in_the_explanation_of_the_ring_are_the_measured_ones() -> None:
    rows = re.findall(r"^\| native .*$", (ROOT / "docs/explanation/ring.md").read_text(), flags=re.M)
    measured = (ROOT / "bench/results/keys-4.3.md").read_text().splitlines()
    assert len(rows) == 2
    assert set(rows) <= set(measured)
