"""The fixtures and settings of all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

from ring.compiled import kind
from tests.certificates import Authority

# A slow machine is no failure.
settings.register_profile("ringproxy", deadline=None)
# The quick profile leaves out what takes long: `make test-all` tries more examples of each property.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.load_profile("ringproxy")


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples where what takes long is left out; and end the run where others than its modules are tested.

    Those of a build, where that comes first in its path.
    """
    if "not long" in config.getoption("markexpr"):
        settings.load_profile("quick")
    places: list[Path] = config.getini("pythonpath")
    wanted = "python" if places[0] == config.rootpath else "compiled"
    if kind() != wanted:
        raise pytest.UsageError(f"pythonpath is {', '.join(map(str, places))}, and yet the modules run as {kind()}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA of a test module's own."""
    return Authority(tmp_path_factory.mktemp("authority"))
