from collections.abc import AsyncIterator

import pytest

from proxy.management import Management
from tests.unit.proxy.fake_management import FakeManagement, serving


@pytest.fixture
async def fake() -> AsyncIterator[FakeManagement]:
    async with serving(FakeManagement()) as made:
        yield made


@pytest.fixture
async def api(fake: FakeManagement) -> AsyncIterator[Management]:
    async with Management(fake.url, timeout=10) as made:
        yield made
