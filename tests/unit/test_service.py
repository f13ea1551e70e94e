"""The systemd unit, and what the Debian package puts beside it."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.cli import STATUSES, parser
from proxy.settings.config import Settings
from proxy.settings.sources import load_settings
from testbed.debian import ensure_package

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/ringproxy.service"
PACKAGE = ROOT / "deploy/deb"

EXPOSURE = 2.0
"""The most of ten that `systemd-analyze security` may say; systemd 252 says 1.4, most of it for the network."""


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)  # a key that stands twice has its last value here
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(UNIT)
    return unit["Service"]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit, with a program that this machine has."""
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(), flags=re.MULTILINE))
    return unit


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [ensure_package("systemd", "systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_has_nothing_to_say_about_the_unit(installed: Path) -> None:
    done = analyze("verify", installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_is_little_exposed(installed: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE * 10:.0f}", installed)
    (found,) = re.findall(r"Overall exposure level for ringproxy\.service: ([\d.]+)", done.stdout)
    assert float(found) <= EXPOSURE
    assert done.returncode == 0, done.stdout


def test_the_unit_runs_a_command_of_this_version_with_the_file_of_the_package(
    service: configparser.SectionProxy, tmp_path: Path
) -> None:
    program, *arguments = service["ExecStart"].split()
    build = (PACKAGE / "build").read_text()
    assert program == "/opt/ringproxy/bin/ring-proxy"
    assert "venv=$work/root/opt/ringproxy\n" in build
    options = parser().parse_args(arguments)
    assert f"\necho {options.config} > " in build.replace("    ", "")
    # All of it stands there as a comment.
    file = tmp_path / "ringproxy.toml"
    file.write_text(re.sub(r"^# (?=\w+ = )", "", (PACKAGE / "ringproxy.toml").read_text(), flags=re.MULTILINE))
    variable, value = service["Environment"].split("=")
    settings = load_settings(file, {variable: value}, {}, secrets=False)
    assert settings.route == ("orders",)
    assert settings.broker_password_file == Path("/etc/ringproxy/secrets/broker-password")
    assert settings.ring_cache_dir == Path("/var/lib", service["StateDirectory"], "rings")
    assert load_settings(PACKAGE / "ringproxy.toml", {}, {}) == Settings()


def test_the_unit_gives_a_sidecar_the_time_and_the_file_descriptors_that_it_needs(
    service: configparser.SectionProxy,
) -> None:
    assert int(service["TimeoutStopSec"]) >= Settings().drain_time + 12
    documented = re.findall(
        r"with the default settings \| ([\d,]+) \|", (ROOT / "docs/reference/memory.md").read_text()
    )
    (needed,) = (int(each.replace(",", "")) for each in documented)
    assert int(service["LimitNOFILE"]) > needed
    assert int(service["RestartPreventExitStatus"]) in STATUSES


@pytest.mark.parametrize("script", ["build", "postinst", "prerm", "postrm"])
def test_a_script_of_the_package_is_one_that_a_shell_reads(script: str) -> None:
    assert (PACKAGE / script).stat().st_mode & 0o111 == 0o111
    assert subprocess.run(["sh", "-n", PACKAGE / script]).returncode == 0
