"""A reader of a document, who runs each block of its commands in turn in one shell, and looks at what it shows."""

import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import proxy
from testbed.node import Node, free_ports
from tests.integration.documents import ROOT

STEP_SECONDS = 90.0

MANAGEMENT_PORT = 15672
LISTENERS = {"AMQP": 5673, "HTTP": 15680, "ADMIN": 15681}
OTHER_PORTS = (19090,)
"""Ports of programs that a document starts beside the broker and the sidecar."""

BLOCK = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', flags=re.M | re.S)
"""A fenced block: its language, its title if it has one, and its text."""

VARIES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|read [\d.]+ s ago|@\[[\d.]+\]")
"""The texts that differ between runs: when a ring changed, how old a reading is, when Prometheus was asked."""
ENDED = re.compile(r"^.*: line \d+: +\d+ (Killed|Terminated) .*\n", flags=re.M)
"""The shell's line on a job that was killed."""


@dataclass
class Step:
    """A block of commands, and what the document shows of their output: nothing if it shows none.

    `files` are the blocks with a title that stand before it, by their titles.
    """

    heading: str
    commands: str
    files: dict[str, str]
    shown: str = ""


def steps(page: str) -> list[Step]:
    """Return the blocks of commands of a page, each with the block of output that follows it."""
    found: list[Step] = []
    files: dict[str, str] = {}
    for section in re.split(r"^## ", (ROOT / page).read_text(), flags=re.M):
        heading = section.partition("\n")[0]
        blocks = BLOCK.findall(section)
        assert len(re.findall("^```", section, flags=re.M)) == 2 * len(blocks), f"a block that is not read: {heading}"
        for language, title, text in blocks:
            if title:
                files[title] = text
            elif language == "sh":
                found.append(Step(heading, text, files))
                files = {}
            elif language != "mermaid":
                assert language in ("text", "json"), f"a block that nothing tries: {text}"
                assert found, f"an output before any command: {text}"
                assert not found[-1].shown, f"two outputs of one block: {text}"
                found[-1].shown = text
    assert not files, f"no command uses {', '.join(files)}"
    return found


class Reader:
    """A reader's shell in a folder. Free ports stand for those that documents name, in the output too."""

    def __init__(self, folder: Path, node: Node) -> None:
        """Start the shell, with settings that lead a sidecar to the node and to free ports."""
        self._folder = folder
        (folder / "bin").mkdir(exist_ok=True)
        named = [*LISTENERS.values(), *OTHER_PORTS]
        self._ports = dict(zip(named, free_ports(len(named)), strict=True))
        self._ports[MANAGEMENT_PORT] = int(node.management_url.rpartition(":")[2])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RINGPROXY_")}
        environment["PIP_QUIET"] = "1"  # one more: pip says nothing of where this machine has its packages from
        environment |= {"PATH": f"{folder / 'bin'}:{environment['PATH']}"}
        environment |= {"RINGPROXY_BROKER_URL": node.amqp_url, "RINGPROXY_MANAGEMENT_URL": node.management_url}
        for name, port in LISTENERS.items():
            environment[f"RINGPROXY_{name}_LISTEN"] = f"127.0.0.1:{self._ports[port]}"
        if (folder / "venv").is_symlink():
            environment["PYTHONPATH"] = str(Path(proxy.__file__).parents[1])  # the same modules that the tests import
        else:
            environment.pop("PYTHONPATH", None)
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def takes(self, step: Step, seconds: float = STEP_SECONDS) -> None:
        """Save the step's files and run its commands; the test fails if they print anything but what is shown."""
        self.saves(step)
        output = told(ENDED.sub("", f"{self.does(step.commands, seconds)}\n"))
        assert output == told(step.shown), f"{step.heading}: printed:\n{output}\nand shown:\n{step.shown}"

    def saves(self, step: Step) -> None:
        """Save the files that the step's commands use."""
        for name, text in step.files.items():
            (self._folder / name).write_text(self._here(text))

    def has(self, examples: str) -> None:
        """Copy a folder of the repository, whose files then name this reader's ports."""
        (self._folder / examples).mkdir(parents=True)
        for path in (ROOT / examples).iterdir():
            (self._folder / examples / path.name).write_text(self._here(path.read_text()))

    def port(self, named: int) -> int:
        """Return the port that stands for one that documents name."""
        return self._ports[named]

    def does(self, commands: str, seconds: float = STEP_SECONDS) -> str:
        """Return what the commands print, errors too; the test fails if they take longer, or the last one fails."""
        admin = self._ports[LISTENERS["ADMIN"]]
        questions = r"(ring-proxy (?:explain \S+ [\w-]+|group \S+))"
        commands = re.sub(questions, rf"\1 --sidecar http://127.0.0.1:{admin}", self._here(commands))
        (self._folder / "bin" / "block").write_text(commands)
        assert self._shell.stdin
        assert self._shell.stdout
        self._shell.stdin.write("source bin/block < /dev/null; printf '\\nended with status %s\\n' $?\n")
        self._shell.stdin.flush()
        late = threading.Timer(seconds, self.leave)
        late.start()
        output = ""
        while not (ended := re.search(r"\nended with status (\d+)\n\Z", output)):
            line = self._shell.stdout.readline()
            assert line, f"not done within {seconds} s: {commands}\n{output}"
            output += line
        late.cancel()
        output = output[: ended.start()]
        assert ended[1] == "0", (commands, output)
        for named, free in self._ports.items():
            output = re.sub(rf"\b{free}\b", str(named), output)
        return output

    def leave(self) -> None:
        """End the shell and all that it has started."""
        os.killpg(self._shell.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave, and wait for the end."""
        self.leave()
        self._shell.communicate()

    def _here(self, text: str) -> str:
        """Return a text with the ports of this reader; a port that has none here would be another program's."""
        for port in re.findall(r"(?:127\.0\.0\.1|localhost)[:\", ]+(\d{4,5})", text):
            assert int(port) in self._ports, f"port {port}"
        for named, free in self._ports.items():
            text = re.sub(rf"\b{named}\b", str(free), text)
        return text


def told(output: str) -> str:
    """Return an output without what varies, and without space at the ends of its lines."""
    return "\n".join(line.rstrip() for line in VARIES.sub("...", output).strip().splitlines())
