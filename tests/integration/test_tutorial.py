"""The tutorial, as a reader goes through it: every block of commands in one shell, and what it shows of their output."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import proxy
from testbed.debian import ensure_installed
from testbed.node import Node, free_ports
from tests.integration.broker_api import DEADLINE_SECONDS
from tests.integration.documents import ROOT
from tests.integration.own_node import Control, own_node, private_only

pytestmark = private_only

INSTALL_SECONDS = 600
PORTS = 5673, 15672, 15680, 15681, 19090
VARIES = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", r"read [\d.]+ s ago", r"@\[[\d.]+\]"
"""What of the output differs from run to run: the time of a change, how old a reading is, and when Prometheus was asked."""

SUDO = """#!/bin/sh
printf '%s\\n' "$*" >> asked-as-root
"""
