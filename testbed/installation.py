"""A RabbitMQ as Debian packages it: the machine's own, or one in a folder made by debootstrap."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Mounts are private to the process, so none outlives it. The temporary folder keeps its path inside.
_ENTER = """
set -e
root=$1 folder=$2; shift 2
shared=$(dirname "$folder")
mkdir -p "$root$shared"
mount --bind "$shared" "$root$shared"
mount --bind "$folder/hosts" "$root/etc/hosts"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Installation:
    """RabbitMQ and Erlang under `root`, which is "/" for the machine's own; `source` names it to people."""

    root: Path
    source: str

    @property
    def server(self) -> str | None:
        """The path, inside `root`, of the script that starts a node as the user who calls it; None if there is none."""
        scripts = sorted(self.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
        return f"/{scripts[-1].relative_to(self.root)}" if scripts else None

    @property
    def major(self) -> int:
        """The major version of RabbitMQ; 0 where there is none."""
        found = re.search(r"rabbitmq_server-(\d+)", self.server or "")
        return int(found[1]) if found else 0

    def command(self, command: Sequence[str], folder: Path) -> list[str]:
        """Make `command` run inside `root`, where `folder` has the same path as outside and holds the `hosts` file."""
        if self.root == Path("/"):
            return list(command)
        return ["unshare", "--mount", "sh", "-c", _ENTER, "enter", str(self.root), str(folder), *command]


MACHINE = Installation(Path("/"), "installed rabbitmq-server")
