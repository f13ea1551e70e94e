"""The command ring-proxy: run, config, explain, diff."""

import argparse
import gc
import io
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import uvloop

from proxy import __version__
from proxy.app import run
from proxy.commands.check import mistakes
from proxy.commands.questions import QuestionError, diff, explain
from proxy.process import memory
from proxy.process.logs import catch_all, escaped, install
from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError, did_you_mean
from proxy.settings.sources import ENVIRONMENT_PREFIX, SWITCHES, describe, field_names, help_of, load_settings
from ring.compiled import kind
from ring.hashing import RING_FORMAT

USAGE_ERROR = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status: 2 for a mistake in settings or arguments."""
    options, unknown = _parser().parse_known_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Keys may be any bytes, and names characters that a terminal lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    if options.do is not _run:
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
        told = f"{name}: unknown flag {flag}{did_you_mean(flag, re.findall(r'--[a-z-]+', command.format_usage()))}"
    return f"{told} (see {command.prog} --help)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ring-proxy",
        description="Routes RabbitMQ publishes over a consistent-hash ring of the exchange's bindings.",
        allow_abbrev=False,
    )
    version = f"ringproxy {__version__}, ring format {RING_FORMAT}, {kind()}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, do, text in (
        ("run", _run, "run a sidecar until SIGTERM"),
        ("config", _config, "show every setting, its meaning and the value in force, secrets hidden"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(do=do, command=command)
        _add_settings(command)
        if do is _config:
            command.add_argument(
                "--check", action="store_true", help="show nothing, and read every file that the settings name instead"
            )
    text = "tell where a key goes and why, as a running sidecar sees it"
    command = commands.add_parser("explain", help=text, description=text, allow_abbrev=False)
    command.set_defaults(do=_explain, command=command)
    command.add_argument("exchange")
    command.add_argument("key", help="the routing key, or the value of the header or property that is hashed")
    command.add_argument("--vhost", help="virtual host (default: the one of the sidecar's broker_url)")
    command.add_argument("--sidecar", metavar="URL", default="http://127.0.0.1:15681", help="its admin listener")
    text = "compare the rings of two sidecars; exit status 1 where they differ"
    command = commands.add_parser("diff", help=text, description=text, allow_abbrev=False)
    command.set_defaults(do=_diff, command=command)
    command.add_argument("one", metavar="URL", help="admin listener of a sidecar, like http://10.0.0.7:15681")
    command.add_argument("other", metavar="URL")
    return parser


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="TOML file of settings, overridden by environment and flags")
    for name in field_names():
        # A switch such as --insecure needs no value.
        more: dict[str, Any] = {"nargs": "?", "const": "true"} if name in SWITCHES else {}
        flag = f"--{name.replace('_', '-')}"
        command.add_argument(flag, dest=f"set_{name}", metavar="VALUE", help=help_of(name), **more)


def _settings(options: argparse.Namespace, *, secrets: bool = True) -> Settings:
    flags = {name: value for name in field_names() if (value := getattr(options, f"set_{name}")) is not None}
    file = options.config or os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return load_settings(Path(file) if file else None, os.environ, flags, secrets=secrets)


def _run(options: argparse.Namespace) -> int:
    settings = _settings(options)
    install(settings.log_level, settings.log_format)
    catch_all()
    # A batch's messages are many objects that live until its answer, and none of them is in a cycle: to look for those
    # at every 700th new object, as Python 3.11 does it (3.13: at every 2,000th), and in all that was imported, took an
    # eighth of a batch's time.
    gc.freeze()
    gc.set_threshold(10_000)
    uvloop.run(run(settings))
    logging.shutdown()
    # At once: the interpreter's own end would wait for the thread that may be building a ring.
    os._exit(0)


def _config(options: argparse.Namespace) -> int:
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


def _explain(options: argparse.Namespace) -> int:
    print(explain(options.sidecar, options.vhost, options.exchange, options.key))
    return 0


def _diff(options: argparse.Namespace) -> int:
    text, differ = diff(options.one, options.other)
    print(text)
    return int(differ)
