"""The part `redrive` of the command `ring-proxy group`: its arguments, and what it prints."""

import argparse
import asyncio
import os
import sys
from typing import Final

from proxy.process.logs import escaped
from proxy.publisher.dial import Brokers
from proxy.redrive.client import LostError, connected
from proxy.redrive.redrive import Redrive, RedriveError
from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.settings.parse import ConfigError

STATUSES: Final = {
    0: "every letter of the group that was in the queue was published again, or --count of them",
    1: "letters of the group were refused and stay; the next run tries them again",
}

_DIALLED_WITHIN: Final = 10.0
"""Seconds in which a sidecar must take the connection."""

_LONGEST_NAME: Final = 255
"""Bytes of the longest name of a queue or exchange in AMQP."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the part."""
    text = "the queue of dead letters"
    command.add_argument("--queue", metavar="QUEUE", required=True, help=text)
    text = "publish at most so many letters again (default: all that are in the queue at the start)"
    command.add_argument("--count", metavar="N", type=_count, help=text)
    # Without a default of its own: the one given before the part's name stays.
    text = "virtual host of the exchange and the queue (default: the path of broker_url)"
    command.add_argument("--vhost", metavar="NAME", default=argparse.SUPPRESS, help=text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of letters, 1 or more")
    return int(text)


def run(settings: Settings, exchange: str, queue: str, vhost: str | None, most: int | None) -> int:
    """Redrive the letters of a group, and return the exit status. Raises ConfigError."""
    for what, name in (("EXCHANGE", exchange), ("--queue", queue), ("--vhost", vhost or "")):
        if (size := len(name.encode("utf-8", "surrogateescape"))) > _LONGEST_NAME:
            raise ConfigError(f"{what}: a name of {size} bytes, and AMQP has {_LONGEST_NAME} at most")
    if not queue:
        raise ConfigError("--queue: empty; name the queue of dead letters")
    if queue == exchange:
        raise ConfigError(f"--queue: {queue!r} is the group itself; name the queue of its dead letters")
    try:
        return asyncio.run(_redrive(settings, exchange, queue, vhost or settings.default_vhost, most))
    except LostError as error:
        _complain(f"broker_url: {error}")
    except RedriveError as error:
        _complain(str(error))
    return 2


async def _redrive(settings: Settings, exchange: str, queue: str, vhost: str, most: int | None) -> int:
    files = Files(settings)
    brokers = Brokers(settings.brokers, files.broker_tls, _DIALLED_WITHIN)
    try:
        async with files.logging_in():
            login = files.broker_login()
    except OSError as error:
        raise LostError(str(error)) from None
    async with connected(brokers, login, vhost) as consumer, connected(brokers, login, vhost) as publisher:
        redrive = Redrive(consumer, publisher, vhost, exchange, queue)
        try:
            await redrive.run(most, _say, _complain)
        except LostError as error:
            if redrive.has_begun:
                raise LostError(f"{error}; nothing is lost, and the next run goes on: run it again") from None
            raise
        finally:
            # After Ctrl-C and a lost connection too: the letters that were published stay published.
            if redrive.has_begun:
                _say(redrive.summary())
    return 1 if redrive.refused else 0


def _say(line: str) -> None:
    try:
        print(escaped(line), flush=True)
    except BrokenPipeError:
        # Nobody reads any more, as after `head`; the letters go on, for the exit status says that all have gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(line: str) -> None:
    print(f"ring-proxy: {escaped(line)}", file=sys.stderr)
