"""Compiles the hot modules, where there is a C compiler; with RINGPROXY_PURE=1 they stay as they are.

The source is the same Python either way (docs/decisions.md).
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
    "proxy/publisher/protocol.py",
    "proxy/publisher/packing.py",
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
    "proxy/routing/routes.py",
    "proxy/wire/table.py",
    "proxy/session/unsettled.py",
    "proxy/http/sending/batch.py",
    "proxy/http/sending/dispatch.py",
    "proxy/http/formats/fields.py",
    "proxy/http/formats/message.py",
)

# By Cython: in threads, without the GIL.
WITHOUT_GIL = "ring/slotwise.py"


def extensions() -> list[Extension]:
    """Those modules, mypyc's in one library; none where they are to stay as they are, or a compiler is not there."""
    if os.environ.get("RINGPROXY_PURE") == "1":
        return []
    try:
        from Cython.Build import cythonize
        from mypyc.build import mypycify
    except ImportError as error:
        print(f"the hot modules are not compiled: {error}", file=sys.stderr)
        return []
    # What is imported besides need not be there to build.
    flags = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        compiled = mypycify([*flags, *HOT], opt_level="3", group_name="ringproxy", strip_asserts=False)
        loop = Extension("ring.slotwise", [WITHOUT_GIL], extra_compile_args=["-O3", "-g0"])
        return compiled + cythonize([loop], build_dir="build", language_level=3, quiet=True, force=True)
    except (Exception, SystemExit) as error:  # how they end for what they refuse
        print(f"the hot modules are not compiled: {error}", file=sys.stderr)
        return []


class BuildOrNot(build_ext):
    """Builds all extensions, or, where one cannot be, none."""

    def run(self) -> None:
        """Never fails for want of a compiler. Nothing is built beside the sources: it would hide changes to them."""
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
