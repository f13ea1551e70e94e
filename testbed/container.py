"""RabbitMQ in a Docker container, through testcontainers."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from testbed import SetupError
from testbed.node import PLUGINS, START_SECONDS
from testbed.readiness import NOT_READY, answering_version

IMAGE = "rabbitmq"
DEFAULT_TAG = "4"


def engine_answers() -> bool:
    """Return whether a Docker engine answers; a client without an engine, or no client, is an ordinary no."""
    if not _socket_answers(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")):
        return False
    try:
        import docker
    except ImportError:
        return False
    try:
        with closing(docker.from_env(timeout=3)) as client:
            return bool(client.ping())
    except docker.errors.DockerException:
        return False


def _socket_answers(docker_host: str) -> bool:
    """Whether anyone accepts connections there; asked first because docker's client leaks a socket nobody accepts."""
    if not docker_host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(docker_host.removeprefix("unix://")) == 0


@contextmanager
def rabbitmq(tag: str) -> Iterator[tuple[str, str, str]]:
    """Run RabbitMQ's official image of that tag; give its AMQP URL, its management URL and its version."""
    if not engine_answers():
        raise SetupError(f"docker:{tag} needs a Docker engine, and none answers")
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer

    image = f"{IMAGE}:{tag}"
    run_server = f"rabbitmq-plugins enable --offline {' '.join(PLUGINS)} && exec docker-entrypoint.sh rabbitmq-server"
    definition = DockerContainer(image).with_command(["sh", "-c", run_server]).with_exposed_ports(5672, 15672)
    with ExitStack() as stack:
        try:
            running = stack.enter_context(definition)
        except DockerException as error:
            raise SetupError(f"Docker cannot run {image}: {error}") from error
        host = running.get_container_host_ip()
        amqp_url = f"amqp://guest:guest@{host}:{running.get_exposed_port(5672)}/"
        management_url = f"http://guest:guest@{host}:{running.get_exposed_port(15672)}"
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                version = answering_version(amqp_url, management_url)
                break
            except NOT_READY as error:
                if time.monotonic() > deadline:
                    raise SetupError(f"{image} did not start within {START_SECONDS} s: {error}") from error
                time.sleep(0.2)
        yield amqp_url, management_url, version
