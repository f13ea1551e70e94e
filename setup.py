"""Installs this project: as it is within seconds, or with RINGPROXY_COMPILE=1 its hot modules compiled, in minutes.

The source is the same Python either way (docs/development/decisions.md).
"""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOT = (
    "ring/hashing.py",
    "proxy/http/admission/limits.py",
    "proxy/journal/buffer.py",
    "proxy/http/sending/journal_receiver.py",
    "proxy/routing/counters.py",
    "proxy/session/backlog.py",
    "proxy/session/channel.py",
    "proxy/publisher/handshake.py",
    "proxy/publisher/protocol.py",
    "proxy/publisher/packing.py",
    "proxy/groups/model.py",
    "proxy/session/merging.py",
    "proxy/session/interceptor.py",
    "proxy/groups/consuming/questions.py",
    "proxy/groups/consuming/events.py",
    "proxy/groups/consuming/tags.py",
    "proxy/groups/consuming/hidden.py",
    "proxy/groups/consuming/deliver.py",
    "proxy/groups/consuming/settle.py",
    "proxy/groups/consuming/interceptor.py",
    "proxy/session/publishing/returned.py",
    "proxy/session/publishing/confirms.py",
    "proxy/session/state.py",
    "proxy/session/connection.py",
    "proxy/session/direction.py",
    "proxy/session/events.py",
    "proxy/session/waiting.py",
    "proxy/session/reads.py",
    "proxy/session/publishing/republishing.py",
    "proxy/wire/content.py",
    "proxy/publisher/channel.py",
    "proxy/wire/frames.py",
    "proxy/wire/properties.py",
    "proxy/session/publishing/publish.py",
    "proxy/session/client_loop.py",
    "proxy/session/broker_loop.py",
    "proxy/routing/route.py",
    "proxy/routing/routes.py",
    "proxy/topology/matching.py",
    "proxy/wire/table.py",
    "proxy/session/publishing/unsettled.py",
    "proxy/http/sending/batch.py",
    "proxy/http/sending/dispatch.py",
    "proxy/http/formats/fields.py",
    "proxy/http/formats/message.py",
    "proxy/http/formats/pairs.py",
)


def extensions() -> list[Extension]:
    """Return the hot modules as extensions of one library with RINGPROXY_COMPILE=1, and none without it."""
    if os.environ.get("RINGPROXY_COMPILE") != "1":
        return []
    # Imported here: an install without it needs no mypyc.
    from mypyc.build import mypycify

    # Other packages that the modules import need not be there to build.
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*flags, *HOT], opt_level="3", group_name="ringproxy", strip_asserts=False)


class BuildApart(build_ext):
    """The build step of the extensions: nothing is built beside the sources, where it would hide their changes."""

    def run(self) -> None:
        """Build the extensions, unless this is an editable install."""
        if self.inplace or self.editable_mode:
            self.extensions = []
            return
        super().run()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildApart})
