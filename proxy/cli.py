"""The command ring-proxy: run, config, reload, explain, diff, group, top, topology.

Each command imports its own modules as it begins. A sidecar keeps none of the others' in memory, and a question to a
sidecar does not wait until all of a sidecar is imported.
"""

import argparse
import gc
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from proxy import __version__
from proxy.commands import group as consumer_group
from proxy.commands.asking import QuestionError
from proxy.commands.group import MEMBERS_VIEW
from proxy.commands.keys import KEYS_VIEW
from proxy.process import memory
from proxy.process.logs import catch_all, escaped, install
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError, did_you_mean
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import (
    ENVIRONMENT_PREFIX,
    SWITCHES,
    Sources,
    describe,
    field_names,
    groups,
    help_of,
    load_settings,
)
from ring.compiled import kind
from ring.hashing import RING_FORMAT

USAGE_ERROR = 2

_SIDECAR = "http://127.0.0.1:15681"
"""The admin listener of a sidecar on this machine, with default settings."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status.

    It is 2 for a mistake in settings or arguments, 130 after Ctrl-C, and 0 once nobody reads the output any more.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["run"]:
        # Until it is taken, it would end the process. A file that changes meanwhile is read at the start or 4 s later.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The arguments of another command would have its modules imported.
    options, unknown = parser(given[0] if given else "").parse_known_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Keys may be any bytes, and names characters that a terminal lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    if options.do is not _run and not getattr(options, "watch", False):
        install("warning", "text")
    try:
        if unknown:
            raise ConfigError(_unknown(options.command, unknown[0]))
        status = int(options.do(options))
        # Here, where a broken pipe is expected, and not at the interpreter's end.
        sys.stdout.flush()
        return status
    except (ConfigError, QuestionError) as error:
        print(f"ring-proxy: {escaped(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output, say `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _unknown(command: argparse.ArgumentParser, argument: str) -> str:
    """Return what to say of an argument that a command does not take, without its value: that may be a password."""
    name, flag = command.prog.rpartition(" ")[2], argument.partition("=")[0]
    told = f"{name}: one argument too many"
    if flag.startswith("-"):
        known = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", command.format_help(), re.MULTILINE)
        told = f"{name}: unknown flag {flag}{did_you_mean(flag, known)}"
    return f"{told} (see {command.prog} --help)"


class _Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line, and not below a usage that may fill the terminal."""

    def error(self, message: str) -> NoReturn:
        """End the command. `message` is argparse's, which names the argument."""
        name = self.prog.rpartition(" ")[2] if " " in self.prog else ""
        # The value may be a password.
        message = re.sub("ignored explicit argument .*", "takes no value", message, flags=re.DOTALL)
        self.exit(USAGE_ERROR, escaped(f"ring-proxy: {name and f'{name}: '}{message} (see {self.prog} --help)") + "\n")


class Command(NamedTuple):
    """One command of `ring-proxy`."""

    name: str
    do: Callable[[argparse.Namespace], int]
    """Does the command, and returns its exit status."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    help: str
    statuses: Mapping[int, str]
    """The meaning of each exit status of the command, but for `STATUSES`."""


STATUSES: Mapping[int, str] = {
    2: "a mistake in the arguments or settings, or no usable answer; standard error says what is wrong",
    130: "Ctrl-C ended the command",
}
"""The meaning of the exit statuses that every command may have."""


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; if `only` names a command, the others get no arguments."""
    made: argparse.ArgumentParser = _Parser(
        prog="ring-proxy",
        description="Routes publishes to RabbitMQ's hash exchanges by a consistent-hash ring of their bindings.",
        epilog="`ring-proxy COMMAND --help` lists the flags and the exit statuses of a command.",
        allow_abbrev=False,
    )
    version = f"ringproxy {__version__}, ring format {RING_FORMAT}, {kind()}"
    text = "print the release, the ring format, and whether the hot modules are compiled; then exit"
    made.add_argument("--version", action="version", version=version, help=text)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        command = _added(commands, each.name, each.help, {**each.statuses, **STATUSES})
        command.set_defaults(do=each.do, command=command)
        if only in (None, each.name):
            each.add_arguments(command)
    return made


def _added(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str, statuses: Mapping[int, str]
) -> argparse.ArgumentParser:
    """Add a command with this help and these exit statuses, and return its parser."""
    return commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=_told(statuses),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _told(statuses: Mapping[int, str]) -> str:
    return "\n".join(["exit status:", *(f"  {status:<4} {meaning}" for status, meaning in sorted(statuses.items()))])


def _add_check(command: argparse.ArgumentParser) -> None:
    text = "show nothing; read every file that the settings name, as a start would, and report each mistake in a line"
    command.add_argument("--check", action="store_true", help=text)
    _add_settings(command)


def _add_reload(command: argparse.ArgumentParser) -> None:
    text = "the new settings file; to have a sidecar read its own again, send it SIGHUP, or wait a few seconds"
    command.add_argument("--check", metavar="FILE", required=True, help=text)
    _add_url(command)


def _add_question(command: argparse.ArgumentParser) -> None:
    command.add_argument("exchange", metavar="EXCHANGE", help="name of the exchange")
    text = "the routing key; for an exchange that hashes a header or property, the value of that"
    command.add_argument("key", metavar="KEY", help=text)
    _add_sidecar(command)


LOGIN = (*("broker_url", "broker_password_file", "broker_addresses", "ca_file", "client_cert_file", "client_key_file"),)
"""The settings that the parts of `group` which connect to a broker take as flags; the others of a configuration file do
nothing there."""


def _add_group(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `ring-proxy group`, and its parts: the report is shown without any part."""
    command.add_argument(
        "exchange", metavar="EXCHANGE", help="name of the exchange, or of one of its groups, such as orders/audit"
    )
    _add_sidecar(command)
    _add_watch(command)
    from proxy.commands import operate, pause
    from proxy.redrive import command as redrive

    command.set_defaults(view=MEMBERS_VIEW)
    parts = command.add_subparsers(metavar="PART")
    part = _added(parts, "keys", "show which keys in series wait for one message", {0: "the sidecar answered"})
    part.set_defaults(view=KEYS_VIEW)
    _add_sidecar(part, is_part=True)
    _add_watch(part, is_part=True)
    for act, text in operate.ACTS.items():
        part = _added(parts, act, text, {0: "it was done"})
        part.set_defaults(do=_operate, command=part, act=act)
        part.add_argument("key", metavar="KEY", help="the key as the part keys shows it, or its hash")
        _add_sidecar(part, is_part=True)
        _add_settings(part, LOGIN)
    for verb, text in pause.VERBS.items():
        part = _added(parts, verb, text, {**pause.STATUSES, **STATUSES})
        part.set_defaults(do=_pause, command=part, verb=verb)
        pause.add_arguments(part)
        _add_settings(part, LOGIN)
    text = "publish the dead letters of the group again, through a sidecar, and take them out of their queue"
    part = _added(parts, "redrive", text, {**redrive.STATUSES, **STATUSES})
    part.set_defaults(do=_redrive, command=part)
    redrive.add_arguments(part)
    _add_settings(part, LOGIN)


def _add_watch(command: argparse.ArgumentParser, *, is_part: bool = False) -> None:
    """Add the flags for how an answer is shown; those of a part leave what the flags before its name have set."""
    default = argparse.SUPPRESS if is_part else False
    text = "show it again each second, until Ctrl-C"
    command.add_argument("--watch", action="store_true", default=default, help=text)
    command.add_argument("--json", action="store_true", default=default, help="print the sidecar's answer as JSON")


def _add_sidecar(command: argparse.ArgumentParser, *, is_part: bool = False) -> None:
    """Add the flags for who is asked; those of a part leave what the flags before its name have set."""
    text = "virtual host of the exchange (default: the sidecar's own, the path of its broker_url)"
    command.add_argument("--vhost", metavar="NAME", default=argparse.SUPPRESS if is_part else None, help=text)
    _add_url(command, argparse.SUPPRESS if is_part else _SIDECAR)


def _add_url(command: argparse.ArgumentParser, default: str = _SIDECAR) -> None:
    text = f"URL of the sidecar's admin listener (default: {_SIDECAR})"
    command.add_argument("--sidecar", metavar="URL", default=default, help=text)


def _add_top(command: argparse.ArgumentParser) -> None:
    text = f"URL of the sidecar's admin listener (default: {_SIDECAR})"
    command.add_argument("--sidecar", metavar="URL", default=_SIDECAR, help=text)


def _add_pair(command: argparse.ArgumentParser) -> None:
    text = f"URL of the first sidecar's admin listener, such as {_SIDECAR}"
    command.add_argument("one", metavar="URL", help=text)
    command.add_argument("other", metavar="URL", help="URL of the second sidecar's admin listener")


def _add_topology(command: argparse.ArgumentParser) -> None:
    """Add the parts of `ring-proxy topology`, each with its arguments."""
    from proxy.shards import command as topology

    parts = command.add_subparsers(required=True, metavar="PART")
    for each in topology.PARTS:
        part = _added(parts, each.name, each.help, {**each.statuses, **STATUSES})
        part.set_defaults(do=_topology, part=each, command=part)
        each.add_arguments(part)
        _add_settings(part, each.settings)


def _add_settings(command: argparse.ArgumentParser, names: tuple[str, ...] | None = None) -> None:
    """Add a flag for each of these settings, for all if none are named; the command has its other arguments already."""
    # A usage with all flags would fill the terminal, and hide what the command needs.
    usage = command.format_usage().removeprefix("usage: ").rstrip()
    command.usage = usage.replace("[-h]", "[-h] [--config FILE] [--SETTING VALUE ...]", 1)
    text = "TOML file of settings; the environment and flags win over it (default: the variable RINGPROXY_CONFIG)"
    command.add_argument("--config", metavar="FILE", help=text)
    for title, members in [("The usual ones", _USUAL), *groups().items()]:
        # argparse does not show a group that stays empty.
        group = command.add_argument_group(title)
        for name in members:
            if (names is not None and name not in names) or (name in _USUAL and members is not _USUAL):
                continue
            # A switch such as --insecure needs no value.
            more: dict[str, Any] = {"nargs": "?", "const": "true"} if name in SWITCHES else {}
            flag = f"--{name.replace('_', '-')}"
            group.add_argument(flag, dest=f"set_{name}", metavar="VALUE", help=help_of(name), **more)


_USUAL = ("broker_url", "management_url")
"""The settings that most commands are given, which stand before all others in the help."""


def _settings(options: argparse.Namespace, *, secrets: bool = True) -> Settings:
    return load_settings(*_sources(options), secrets=secrets)


def _sources(options: argparse.Namespace) -> Sources:
    """Return where the settings of a command come from."""
    flags = {name: value for name in field_names() if (value := getattr(options, f"set_{name}", None)) is not None}
    file = options.config or os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return Sources(Path(file) if file else None, os.environ, flags)


def _run(options: argparse.Namespace) -> int:
    """Run a sidecar until a signal ends it; ends the process, and so never returns. Raises ConfigError."""
    import uvloop

    from proxy.app import run

    in_force = SettingsInForce(_sources(options))
    install(in_force.now.log_level, in_force.now.log_format)
    catch_all()
    # A batch's messages are many objects that live until its answer, and none of them is in a cycle: to look for those
    # at every 700th new object, as Python 3.11 does it (3.13: at every 2,000th), and in all that was imported, took an
    # eighth of a batch's time.
    gc.freeze()
    gc.set_threshold(10_000)
    uvloop.run(run(in_force))
    logging.shutdown()
    # At once: the interpreter's own end would wait for the thread that may be building a ring.
    os._exit(0)


def _config(options: argparse.Namespace) -> int:
    """Print the settings and the memory that they need, or with `--check` every mistake; return the exit status."""
    from proxy.commands.check import mistakes

    if options.check:
        found = mistakes(_settings(options, secrets=False))
        for mistake in found:
            print(f"ring-proxy: {escaped(mistake)}", file=sys.stderr)
        if not found:
            print("the settings, and the files that they name, are in order")
        return USAGE_ERROR if found else 0
    settings = _settings(options)
    print(describe(settings))
    print(memory.table(settings))
    return 0


def _reload(options: argparse.Namespace) -> int:
    """Print what a settings file would change at a running sidecar; return the exit status."""
    from proxy.commands.reload import check

    told = check(options.sidecar, Path(options.check))
    print("\n".join(map(escaped, told.lines)))
    return int(not told.takes_effect)


def _explain(options: argparse.Namespace) -> int:
    from proxy.commands.explain import explain

    print(explain(options.sidecar, options.vhost, options.exchange, options.key))
    return 0


def _diff(options: argparse.Namespace) -> int:
    from proxy.commands.diff import diff

    text, differ = diff(options.one, options.other)
    print(text)
    return int(differ)


def _group(options: argparse.Namespace) -> int:
    if options.watch:
        consumer_group.watch(options.sidecar, options.vhost, options.exchange, options.view, as_json=options.json)
    print(consumer_group.show(options.sidecar, options.vhost, options.exchange, options.view, as_json=options.json))
    return 0


def _top(options: argparse.Namespace) -> int:
    from proxy.commands import top

    top.run(options.sidecar)
    return 0


def _operate(options: argparse.Namespace) -> int:
    """Send an operator's order for one key, and print what became of it; return the exit status."""
    from proxy.commands import operate

    for flag in ("watch", "json"):
        if getattr(options, flag):
            raise ConfigError(f"{options.act}: --{flag} is of the report, which {options.act} does not print")
    where = (options.sidecar, options.vhost, options.exchange)
    print(escaped(operate.run(_settings(options), *where, options.act, options.key)))
    return 0


def _pause(options: argparse.Namespace) -> int:
    from proxy.commands import pause

    _no_report(options, options.verb)
    told = pause.run(_settings(options), options.vhost, options.exchange, options.verb, options.shard)
    print("\n".join(map(escaped, told.lines)))
    return told.status


def _no_report(options: argparse.Namespace, part: str) -> None:
    for flag, default in (("watch", False), ("json", False), ("sidecar", _SIDECAR)):
        if getattr(options, flag) != default:
            raise ConfigError(f"{part}: --{flag} is of the report, which {part} does not print")


def _redrive(options: argparse.Namespace) -> int:
    """Publish a group's dead letters again; return the exit status. Raises ConfigError for a flag of the report."""
    from proxy.redrive import command as redrive

    _no_report(options, "redrive")
    return redrive.run(_settings(options), options.exchange, options.queue, options.vhost, options.count)


def _topology(options: argparse.Namespace) -> int:
    from proxy.shards import command as topology

    return topology.run(options.part, _settings(options), options)


COMMANDS = (
    Command(
        "run",
        _run,
        _add_settings,
        "run a sidecar until SIGTERM or SIGINT",
        {
            0: "a signal ended the sidecar, after it had answered what was in flight, or after drain_time",
            1: "a second signal, or an unexpected error, ended the sidecar at once",
        },
    ),
    Command(
        "config",
        _config,
        _add_check,
        "show every setting with its meaning and the value in force, passwords hidden",
        {0: "no mistake was found"},
    ),
    Command(
        "reload",
        _reload,
        _add_reload,
        "show what a new settings file would change at a running sidecar, and change nothing",
        {
            0: "the file has no mistake, and all of it would take effect without a restart",
            1: "the file has no mistake, and something in it needs a restart or has no effect",
        },
    ),
    Command(
        "explain",
        _explain,
        _add_question,
        "show where a running sidecar sends a key, and why",
        {0: "the sidecar answered"},
    ),
    Command(
        "diff",
        _diff,
        _add_pair,
        "compare the rings of two running sidecars",
        {
            0: "the sidecars agree on every exchange that both have read",
            1: "the sidecars differ",
        },
    ),
    Command(
        "group",
        _group,
        _add_group,
        "show who has which shard of a consumer group and what is about to move, or which keys wait",
        {0: "the sidecar answered"},
    ),
    Command(
        "top",
        _top,
        _add_top,
        "show a running sidecar live: what is wrong, exchanges and groups",
        {0: "the user has quit, or one picture was printed where there is no terminal"},
    ),
    Command(
        "topology",
        _topology,
        _add_topology,
        "make exchanges and their shards from a file, and change them",
        {
            0: "there is nothing to do, or all of it was done",
            1: "plan and check: there is something to do",
        },
    ),
)
"""Every command of `ring-proxy`."""
