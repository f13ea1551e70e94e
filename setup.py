"""Compiles the hot modules, where there is a C compiler; with RINGPROXY_PURE=1 they stay as they are.

The source is the same Python either way (docs/development/decisions.md).
"""

import os
import sys
from pathlib import Path

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
    "proxy/groups/member.py",
    "proxy/session/numbering.py",
    "proxy/session/hidden.py",
    "proxy/session/delivering.py",
    "proxy/session/settling.py",
    "proxy/session/returned.py",
    "proxy/session/confirms.py",
    "proxy/session/state.py",
    "proxy/session/connection.py",
    "proxy/session/direction.py",
    "proxy/session/events.py",
    "proxy/session/waiting.py",
    "proxy/session/reads.py",
    "proxy/session/republishing.py",
    "proxy/wire/content.py",
    "proxy/publisher/channel.py",
    "proxy/wire/frames.py",
    "proxy/wire/properties.py",
    "proxy/session/publishing.py",
    "proxy/session/client_loop.py",
    "proxy/session/broker_loop.py",
    "proxy/routing/route.py",
    "proxy/routing/routes.py",
    "proxy/topology/matching.py",
    "proxy/wire/table.py",
    "proxy/session/unsettled.py",
    "proxy/http/sending/batch.py",
    "proxy/http/sending/dispatch.py",
    "proxy/http/formats/fields.py",
    "proxy/http/formats/message.py",
)


def extensions() -> list[Extension]:
    """Return the hot modules as extensions of one library; none with RINGPROXY_PURE=1 or where mypyc fails."""
    if os.environ.get("RINGPROXY_PURE") == "1":
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        print(f"the hot modules are not compiled: {error}", file=sys.stderr)
        return []
    # What is imported besides need not be there to build.
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        return mypycify([*flags, *HOT], opt_level="3", group_name="ringproxy", strip_asserts=False)
    except (Exception, SystemExit) as error:  # how mypyc ends for what it refuses
        print(f"the hot modules are not compiled: {error}", file=sys.stderr)
        return []


class BuildOrNot(build_ext):
    """The build step of the extensions: it builds all of them, or, where one cannot be built, none."""

    def run(self) -> None:
        """Build the extensions; never fail for want of a compiler.

        Nothing is built beside the sources, where it would hide later changes to them.
        """
        if self.inplace or self.editable_mode:
            self.extensions = []
            return
        try:
            super().run()
        except Exception as error:
            print(f"the hot modules are not compiled: {error}", file=sys.stderr)
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions = []


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildOrNot})
