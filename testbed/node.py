"""A RabbitMQ node of our own: private ports, data and epmd, nothing shared with any other broker on the machine."""

from __future__ import annotations

import random
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from testbed import SetupError
from testbed.installation import Installation
from testbed.readiness import NOT_READY, answering_version
from testbed.supervisor import Process, Supervisor

PLUGINS = "rabbitmq_management", "rabbitmq_consistent_hash_exchange", "rabbitmq_event_exchange", "rabbitmq_sharding"
START_SECONDS = 180
"""For a start while several nodes, and whatever else, share two cores: 60 s were too few at a load of 20."""
STOP_SECONDS = 60
CONTROL_SECONDS = 60
_EPMD_TRIES = 5
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Certificates(NamedTuple):
    """PEM files of a node that also listens with TLS, and lets in only whom its CA vouches for."""

    ca: Path
    certificate: Path
    key: Path


class Node:
    """A node that can be stopped, killed and started again: its ports and its data stay the same.

    It stands in the supervisor's folder and ends with the supervisor. `epmd_port` is where `start_epmd` listens;
    nodes that share it and the supervisor know each other's names, and have the cookie that it has written.
    """

    def __init__(
        self,
        installation: Installation,
        supervisor: Supervisor,
        epmd_port: int,
        certificates: Certificates | None = None,
    ) -> None:
        """Choose the ports and write the configuration; nothing runs yet."""
        self._installation = installation
        self._supervisor = supervisor
        self._epmd_port = epmd_port
        self._amqp_port, self._management_port, self._distribution_port, amqps, https = free_ports(5)
        self._process: Process | None = None
        self.name = f"rabbit-{self._amqp_port}@localhost"
        self.amqp_url = f"amqp://guest:guest@127.0.0.1:{self._amqp_port}/"
        self.management_url = f"http://guest:guest@127.0.0.1:{self._management_port}"
        self.amqps_url = f"amqps://guest:guest@localhost:{amqps}/"
        self.https_url = f"https://guest:guest@localhost:{https}"
        self.folder = supervisor.folder / self.name
        self.log = self.folder / "log"
        self._write_configuration()
        if certificates is not None:
            self._write_tls_configuration(certificates, amqps, https)

    @property
    def pid(self) -> int:
        """The pid of the node's Erlang machine (beam.smp), last started."""
        return self._running().pid

    def start(self) -> str:
        """Start the node, wait until it serves AMQP and its management API, and return the version it reports."""
        server = self._installation.server
        if not server:
            raise SetupError(f"{self._installation.source}: no rabbitmq-server in {self._installation.root}")
        command = self._installation.command([server], self._supervisor.folder)
        self._process = self._supervisor.spawn(command, self._environment(), self.log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return answering_version(self.amqp_url, self.management_url)
            except NOT_READY as error:
                if self._process.wait(0.1):
                    raise SetupError(
                        f"RabbitMQ ended while starting; the end of its log:\n{self._log_tail()}"
                    ) from None
                if time.monotonic() > deadline:
                    message = f"RabbitMQ did not start within {START_SECONDS} s ({error}); the end of its log:\n"
                    raise SetupError(message + self._log_tail()) from error

    def control(self, *arguments: str, program: str = "rabbitmqctl") -> None:
        """Run rabbitmqctl, or another of RabbitMQ's programs, on the node, and wait until it has ended."""
        command = str(Path(self._installation.server or "").with_name(program))
        environment = {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": str(self._supervisor.folder),  # where the cookie is
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        log = self.folder / "rabbitmqctl.log"
        wrapped = self._installation.command([command, "--node", self.name, *arguments], self._supervisor.folder)
        if not self._supervisor.spawn(wrapped, environment, log).wait(CONTROL_SECONDS):
            raise SetupError(f"{program} {' '.join(arguments)} did not end in time: {log.read_text()}")

    def stop(self) -> None:
        """Shut the node down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the node at once, as a crash would."""
        self._end(signal.SIGKILL)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the node, and let it run on at the end; once this is entered, none of its threads runs.

        SIGSTOP is taken by one thread, which stops the others. On a busy machine they go on until it has its turn.
        """
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + STOP_SECONDS
            while any(state != "T" for state in _thread_states(process.pid)):
                if time.monotonic() > deadline:
                    raise SetupError(f"RabbitMQ did not freeze within {STOP_SECONDS} s")
                time.sleep(0.001)
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process = self._running()
        process.send_signal(number)
        if not process.wait(STOP_SECONDS):
            raise SetupError(f"RabbitMQ did not end within {STOP_SECONDS} s of {number.name}:\n{self._log_tail()}")

    def _running(self) -> Process:
        if not self._process:
            raise RuntimeError("the node was never started")
        return self._process

    def _write_configuration(self) -> None:
        (self.folder / "conf.d").mkdir(parents=True)
        (self.folder / "conf.d" / "node.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._amqp_port}\n"
            f"management.tcp.ip = 127.0.0.1\n"
            f"management.tcp.port = {self._management_port}\n"
            f"log.console.level = warning\n"
            f"disk_free_limit.absolute = 50MB\n"
        )
        (self.folder / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")

    def _write_tls_configuration(self, certificates: Certificates, amqps: int, https: int) -> None:
        lines = [
            f"listeners.ssl.1 = 127.0.0.1:{amqps}",
            "management.ssl.ip = 127.0.0.1",
            f"management.ssl.port = {https}",
        ]
        for prefix in ("ssl_options", "management.ssl"):
            lines += [f"{prefix}.verify = verify_peer", f"{prefix}.fail_if_no_peer_cert = true"]
            for option, source in zip(("cacertfile", "certfile", "keyfile"), certificates, strict=True):
                # Copied: this folder is what an installation in a folder of its own sees.
                (self.folder / option).write_bytes(source.read_bytes())
                lines.append(f"{prefix}.{option} = {self.folder / option}")
        (self.folder / "conf.d" / "tls.conf").write_text("\n".join(lines) + "\n")

    def _environment(self) -> dict[str, str]:
        """Every place where the package's scripts would otherwise find the machine's own RabbitMQ."""
        return {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            "HOME": str(self._supervisor.folder),  # where Erlang keeps the cookie
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(self.folder / "erl_crash.dump"),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONFIG_FILES": str(self.folder / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then becomes the node instead of watching it
        }

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def _thread_states(pid: int) -> list[str]:
    """Return the state of each thread of a process, a letter as proc(5) has it."""
    # The name before it is in parentheses, and may have some of its own.
    return [stat.read_text().rpartition(") ")[2][0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]


@contextmanager
def private_node(installation: Installation, certificates: Certificates | None = None) -> Iterator[Node]:
    """Give a node, not yet started, and leave nothing of it behind."""
    with Supervisor() as supervisor:
        yield Node(installation, supervisor, start_epmd(installation, supervisor), certificates)


def start_epmd(installation: Installation, supervisor: Supervisor) -> int:
    """Start an Erlang port mapper on a free port, wait until it listens, and return the port.

    It also writes what all nodes of the supervisor share before the first of them starts: names of hosts and cookie.
    """
    (supervisor.folder / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    _write_cookie(supervisor.folder / ".erlang.cookie")
    log = supervisor.folder / "epmd.log"
    for _ in range(_EPMD_TRIES):
        (port,) = free_ports(1)
        command = ["epmd", "-address", "127.0.0.1", "-port", str(port)]
        process = supervisor.spawn(installation.command(command, supervisor.folder), {"PATH": _PATH}, log)
        while not process.wait(0.02):
            if _listens(port):
                return port
        # epmd ends with status 0 and no message if somebody has taken the port meanwhile.
    raise SetupError(f"the Erlang port mapper (epmd) did not start: {log.read_text()}")


def _write_cookie(file: Path) -> None:
    """Write the secret by which Erlang nodes let each other in, readable by its owner only.

    An Erlang node that finds no such file makes one, in several steps. If nodes start at the same time, one may read
    the file of another before its mode is set, and end, or may write over the cookie that another has read.
    Nodes with different cookies never form a cluster: each asks the others every 3 s, by a temporary node whose first
    line in the log is of inet_gethost_native.
    """
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(secrets.token_hex(16))
    file.chmod(0o400)


def free_ports(count: int) -> list[int]:
    """Return loopback ports nobody uses, below those the kernel gives to clients.

    A client that tries again and again to reach a node that is down could otherwise be given the node's own port.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20000, 32768)
        if port not in ports and _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
