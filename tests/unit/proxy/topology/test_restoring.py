"""When what was kept on disk is used: once a reading has failed, of the broker's own cluster, and for no longer."""

import asyncio
from pathlib import Path

import pytest

from proxy.topology import scheduler as scheduler_module
from proxy.topology.lookups import NotReadable, VhostAbsent
from proxy.topology.ring_cache import RingCache, Saved
from proxy.topology.table import Entry, PassReason
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.fake_management import FakeManagement, binding, body, serving, silent, status
from tests.unit.proxy.topology.scheduling import A, B, Clock, X, scheduling, warnings


async def keep(fake: FakeManagement, folder: Path) -> None:
    """Keep a ring on disk, as a sidecar did that is gone."""
    async with scheduling(fake, cache=RingCache(folder)) as made:
        await made.scheduler.look_up(X, 10)
    await eventually(lambda: any(folder.glob("*.ring.json")))


@pytest.mark.parametrize("fault", [status(503), status(401), body(b"{")])
async def test_a_look_up_that_fails_goes_by_what_was_kept(
    fake: FakeManagement, clock: Clock, tmp_path: Path, fault: object
) -> None:
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    fake.exchange("x", binding("a"), binding("b"))
    fake.fail(fault)  # type: ignore[arg-type]
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        await made.scheduler.look_up(X, 10)
        assert (made.weights(), made.entry.restored, made.waits()) == ({A: 1}, True, False)
        assert made.router.clock() > made.entry.read_at
        assert X in made.scheduler.faults
        # Its first good reading replaces it.
        fake.mend()
        await made.scheduler._again(X)
        assert (made.weights(), made.entry.restored, made.scheduler.faults) == ({A: 1, B: 1}, False, {})


async def test_a_look_up_that_shares_a_reading_in_turn_goes_by_what_that_has_restored(
    fake: FakeManagement, clock: Clock, tmp_path: Path
) -> None:
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    fake.fail(status(503))
    async with scheduling(fake, cache=RingCache(tmp_path), named=(X,)) as made:
        await asyncio.gather(made.scheduler._in_turn(X), made.scheduler.look_up(X, 1))
        assert (made.weights(), made.entry.restored, made.waits()) == ({A: 1}, True, False)


async def test_a_removal_settles_as_with_any_stale_ring(fake: FakeManagement, clock: Clock, tmp_path: Path) -> None:
    fake.exchange("x", binding("a"), binding("b"))
    await keep(fake, tmp_path)
    fake.exchange("x", binding("a"))
    fake.fail(status(503))
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        await made.scheduler.look_up(X, 10)
        fake.mend()
        await made.scheduler._again(X)
        assert made.weights() == {A: 1, B: 1}
        for _ in range(6):
            clock.now += 1
            await made.scheduler._again(X)
        assert made.weights() == {A: 1}


async def test_an_answer_is_believed_and_not_the_file(fake: FakeManagement, clock: Clock, tmp_path: Path) -> None:
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    fake.vhosts.clear()
    fake.delete("x")
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        with pytest.raises(VhostAbsent):
            await made.scheduler.look_up(X, 10)
        assert not made.router.entries


@pytest.mark.parametrize("fault", [silent, status(503)])
async def test_a_start_without_an_answer_restores_all_that_is_kept(
    fake: FakeManagement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: object
) -> None:
    monkeypatch.setattr(scheduler_module, "PATIENCE", 0.05)
    fake.exchange("x", binding("a"))
    fake.exchange("topics", type="topic")
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        for name in (X, ("/", "topics")):
            await made.scheduler.look_up(name, 10)
    await eventually(lambda: len(list(tmp_path.glob("*.ring.json"))) == 2)
    fake.fail(fault)  # type: ignore[arg-type]
    async with scheduling(fake, running=True, cache=RingCache(tmp_path)) as made:
        # Before its reading has failed, which with `silent` takes longer than this test may.
        async with asyncio.timeout(5):
            await made.scheduler.look_up(X, 60)
        await eventually(lambda: len(made.router.entries) == 2)
        assert made.router.entries["/", "topics"].passed is PassReason.TYPE
        assert made.routes()
        assert made.reader.identity.mismatch("rabbit@fake") == ""
        assert made.reader.identity.mismatch("elsewhere")
        fake.mend()
        if fault is not silent:
            await eventually(lambda: not any(entry.restored for entry in made.router.entries.values()))


async def test_what_was_kept_of_another_cluster_is_forgotten_once_the_api_says_its_own(
    fake: FakeManagement, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail(body([{"name": "/", "cluster_state": {"rabbit@fake": "running"}}]), "/api/vhosts")
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    async with serving(FakeManagement()) as now:
        now.exchange("x", binding("b"))
        now.fail(status(503))
        async with scheduling(now, cache=RingCache(tmp_path)) as made:
            await made.scheduler.look_up(X, 10)
            assert made.weights() == {A: 1}
            now.mend()
            now.fail(body({"name": "elsewhere"}), "/api/cluster-name")
            now.fail(body([{"name": "/", "cluster_state": {"rabbit@elsewhere": "running"}}]), "/api/vhosts")
            await made.scheduler._again(X)
            # Nothing of it is left to settle, either.
            assert made.weights() == {B: 1}
            now.fail(status(503))
            with pytest.raises(NotReadable):
                await made.scheduler.look_up(("/", "never"), 0.1)
        # The file is written anew, for the cluster of now.
    assert any("belong to another cluster" in line for line in warnings(caplog))


async def test_a_cluster_that_becomes_known_while_a_ring_is_built_counts(
    fake: FakeManagement, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fail(body([{"name": "/", "cluster_state": {"rabbit@fake": "running"}}]), "/api/vhosts")
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        identity, build = made.reader.identity, made.reader._entry_builder.restored
        await identity.watch()

        async def building(saved: Saved, read_at: float) -> Entry | None:
            identity.assume("elsewhere", frozenset({"elsewhere"}), frozenset({"rabbit@elsewhere"}))
            return await build(saved, read_at)

        monkeypatch.setattr(made.reader._entry_builder, "restored", building)
        fake.fail(status(503))
        with pytest.raises(NotReadable):
            await made.scheduler.look_up(X, 0.2)
        assert not made.router.entries


async def test_a_cluster_that_is_known_is_not_mixed_with_another_s_files(
    fake: FakeManagement, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail(body([{"name": "/", "cluster_state": {"rabbit@fake": "running"}}]), "/api/vhosts")
    fake.exchange("x", binding("a"))
    await keep(fake, tmp_path)
    fake.mend()
    fake.fail(body({"name": "elsewhere"}), "/api/cluster-name")
    async with scheduling(fake, cache=RingCache(tmp_path)) as made:
        await made.reader.identity.watch()
        fake.fail(status(503))
        with pytest.raises(NotReadable):
            await made.scheduler.look_up(X, 0.2)
        assert not made.router.entries
    assert any("belongs to cluster 'rabbit@fake', and is not used" in line for line in warnings(caplog))
