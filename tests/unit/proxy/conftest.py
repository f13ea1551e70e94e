from collections.abc import AsyncIterator

import pytest

from proxy.topology import reader as reader_module
from proxy.topology import scheduler as scheduler_module
from proxy.topology import upstreams
from proxy.topology.management import Management
from tests.unit.proxy.fake_management import FakeManagement, serving
from tests.unit.proxy.topology.scheduling import Clock


@pytest.fixture
async def fake() -> AsyncIterator[FakeManagement]:
    async with serving(FakeManagement()) as made:
        yield made


@pytest.fixture
async def api(fake: FakeManagement) -> AsyncIterator[Management]:
    async with Management([fake.url], timeout=10) as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (scheduler_module, reader_module, upstreams):
        monkeypatch.setattr(module, "time", made)
    return made
