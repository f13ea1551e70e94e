"""Rings kept on disk, of which nothing is believed unchecked."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.settings.parse import ConfigError
from proxy.settings.patterns import Mode
from proxy.topology import ring_cache as cache_module
from proxy.topology.bindings import CONSISTENT_HASH, Bindings
from proxy.topology.generations import OtherGeneration, OtherShard
from proxy.topology.ring_cache import KEPT_FOR, REWRITE_AFTER, RingCache, Saved, decode_saved, encode_saved, file_name
from proxy.topology.table import Entry, KnownRing, Name, PassReason
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring
from tests.unit.proxy.topology.scheduling import A, B, X, warnings

CLUSTER = ("rabbit@fake", frozenset({"rabbit@fake", "rabbit@two"}), frozenset({"rabbit@one"}))
SAVED = Saved(
    ("/é", "orders/x"),
    *CLUSTER,
    CONSISTENT_HASH,
    False,
    HashedValue("header", "customer"),
    {A: 3, Destination("exchange", "behind"): 10_000},
    {"a": None},
    {A: "lane"},
    PassReason.NOT_A_LANE,
    1_700_000_000.5,
    {"lane": {"orders": "a", "orders/audit": "audit.a"}},
    3,
    6,
    (
        OtherGeneration(
            1,
            0,
            {A: OtherShard("a", (("orders", "a"),)), Destination("exchange", "old"): OtherShard("")},
        ),
        OtherGeneration(2, 4, {}),
    ),
)
SINCE = frozenset({"groups", "generation", "made_with", "others"})
"""The values that files of older releases lack."""
GOOD: dict[str, Any] = json.loads(encode_saved(SAVED))


def entry(weights: dict[Destination, int] | None = None, **fields: Any) -> Entry:
    ring = Ring.build(weights or {A: 1})
    known = KnownRing.of(ring, HashedValue(), CONSISTENT_HASH)
    made = {"mode": Mode.ROUTE, "exchange_type": CONSISTENT_HASH, "known": known, "passed": None}
    return Entry(**{**made, "bindings": Bindings(weights or {A: 1}), "read_at": 0.0, **fields})


class Wall:
    """Stands for the wall clock."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def cache(tmp_path: Path, wall: Wall) -> Iterator[RingCache]:
    made = RingCache(tmp_path / "rings", wall)
    done(made)  # what it removes at the start, as the wall clock here is weeks ahead of the files'
    yield made
    made.close()


def done(cache: RingCache) -> None:
    """Returns once the thread has written what it was given."""
    cache._thread.submit(lambda: None).result(10)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "rings").iterdir())


def test_what_is_kept_is_what_comes_back() -> None:
    assert decode_saved(encode_saved(SAVED)) == SAVED
    bare = Saved(X, None, frozenset(), frozenset(), "topic", True, at=1.0)
    assert decode_saved(encode_saved(bare)) == bare


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("version", {"version": 1}),
    ("version", {"version": True}),
    ("ring_format", {"ring_format": 99}),
    ("cluster", {"cluster": 1}),
    ("cluster", {"cluster": "x" * 256}),
    ("cluster_names", {"cluster_names": "rabbit"}),
    ("cluster_names", {"cluster_names": [""]}),
    ("cluster_nodes", {"cluster_nodes": ["n"] * 1001}),
    ("vhost", {"vhost": ""}),
    ("vhost", {"vhost": ["/"]}),
    ("exchange", {"exchange": "é" * 128}),
    ("type", {"type": None}),
    ("type|weights", {"type": "topic"}),
    ("internal", {"internal": 0}),
    ("header:NAME", {"hashed": "cookie:x"}),
    ("hashed", {"hashed": "header:" + "x" * 600}),
    ("weights", {"weights": {}}),
    ("weights", {"weights": [["queue", "a"]]}),
    ("weights", {"weights": [["stream", "a", 1]]}),
    ("weights", {"weights": [["queue", "a", 0]]}),
    ("weights", {"weights": [["queue", "a", 10_001]]}),
    ("weights", {"weights": [["queue", "a", True]]}),
    ("weights", {"weights": [["queue", "a", 1.5]]}),
    ("weights", {"weights": [["queue", "a" * 256, 1]]}),
    ("weights", {"weights": [["queue", "a", 1], ["queue", "a", 1]]}),
    ("weights", {"weights": [["queue", "a", 1]] * 65_537}),
    ("queues", {"queues": []}),
    ("queues", {"queues": {"elsewhere": None}}),
    ("queues", {"queues": {"a": 1}}),
    ("queues", {"queues": {"a": "x" * 1025}}),
    ("lanes", {"lanes": [["a", "lane"]]}),
    ("lanes", {"lanes": {"elsewhere": "lane"}}),
    ("lanes", {"lanes": {"a": ""}}),
    ("bound_aside", {"bound_aside": True}),
    ("bound_aside", {"bound_aside": ["not_a_lane"]}),
    ("bound_aside", {"bound_aside": "dead_letter"}),
    ("at", {"at": "now"}),
    ("at", {"at": True}),
    ("at", {"at": -1}),
    ("malformed", {"at": float("nan")}),
    ("malformed", {"at": float("inf")}),
    ("at", {"at": 1e13}),
    ("generation", {"generation": 0}),
    ("generation", {"generation": "2"}),
    ("generation", {"generation": 10**9 + 1}),
    ("generation", {"generation": 1}),
    ("made_with", {"made_with": 0}),
    ("made_with", {"made_with": 65_537}),
    ("others", {"others": {}}),
    ("others", {"others": [[1, 0]]}),
    ("others", {"others": [[1, 0, [["queue", "", "a", {}]]]]}),
    ("others", {"others": [[1, 0, [["queue", "é" * 128, "a", {}]]]]}),
    ("others", {"others": [[1, 0, [["queue", "a", "a", {"orders": "é" * 128}]]]]}),
    ("fingerprint", {"fingerprint": "0" * 16}),
    ("fingerprint", {"weights": [["queue", "a", 4], ["exchange", "behind", 10_000]]}),
    ("fingerprint", {"hashed": "header:other"}),
]


@pytest.mark.parametrize(("what", "changes"), WRONG)
def test_a_file_with_a_wrong_value_is_not_believed(what: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=what):
        decode_saved(json.dumps(GOOD | changes).encode())


def test_a_file_of_a_release_without_groups_and_generations_is_believed() -> None:
    older = decode_saved(json.dumps({key: value for key, value in GOOD.items() if key not in SINCE}).encode())
    assert (older.groups, older.generation, older.made_with, older.others) == ({}, 1, 0, ())


@pytest.mark.parametrize("key", sorted(GOOD.keys() - SINCE))
def test_a_file_without_a_value_is_not_believed(key: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_saved(json.dumps({k: v for k, v in GOOD.items() if k != key}).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_any_value_gives_a_ring_or_a_value_error(key: str, value: object) -> None:
    try:
        saved = decode_saved(json.dumps(GOOD | {key: value}).encode())
    except ValueError:
        return
    assert encode_saved(saved) == encode_saved(decode_saved(encode_saved(saved)))
    assert saved.weights == SAVED.weights


@given(st.binary())
@example(b"")
@example(b"[]")
@example(b"null")
@example(b"\xff")
@example(encode_saved(SAVED)[:-1]).via("cut short")
@example(b"[" * 100_000).via("deep")
@example(b" " * (cache_module.MOST_BYTES + 1)).via("long")
@example(json.dumps(GOOD | {"vhost": "\ud800"}).encode()).via("a surrogate")
@example(encode_saved(SAVED).replace(b"1700000000.5", b"9" * 5000)).via("a huge number")
def test_a_file_that_is_something_else_is_not_believed(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_saved(content)


def test_files_are_their_owner_s_alone_and_whole(cache: RingCache, tmp_path: Path, wall: Wall) -> None:
    old = os.umask(0)
    try:
        cache.keep(X, entry({A: 1, B: 2}, queues={"a": "x"}, passed=PassReason.DEAD_LETTER), CLUSTER, 4.0)
        done(cache)
    finally:
        os.umask(old)
    (file,) = files(tmp_path)
    assert file.name == file_name(X)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    saved = cache.load(X)
    assert saved is not None
    assert (saved.weights, saved.queues, saved.at) == ({A: 1, B: 2}, {"a": "x"}, wall.now - 4.0)
    assert (saved.cluster, saved.cluster_names, saved.cluster_nodes) == CLUSTER
    assert cache.load_all() == [saved]
    cache.forget(X)
    done(cache)
    assert (files(tmp_path), cache.load(X), cache.load_all()) == ([], None, [])


def test_an_unchanged_ring_is_written_again_only_once_its_file_has_aged(
    cache: RingCache, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Name] = []
    monkeypatch.setattr(cache, "_do", lambda name, _: written.append(name))
    for _ in range(3):
        cache.keep(X, entry(), CLUSTER, 0.0)
    assert len(written) == 1
    wall.now += REWRITE_AFTER + 1
    cache.keep(X, entry(), CLUSTER, 0.0)
    assert len(written) == 2
    wall.now -= 3600  # the clock is set back
    cache.keep(X, entry(), CLUSTER, 0.0)
    assert len(written) == 3
    for changed in (entry({A: 2}), entry({A: 2}, internal=True), entry({A: 2}, queues={"a": "x"})):
        cache.keep(X, changed, CLUSTER, 0.0)
    cache.keep(X, changed, ("renamed", *CLUSTER[1:]), 0.0)
    assert len(written) == 7


def test_what_a_setting_leaves_alone_is_not_kept(cache: RingCache, tmp_path: Path) -> None:
    cache.keep(X, entry(), CLUSTER, 0.0)
    cache.keep(X, entry(mode=Mode.PASS, known=None, passed=PassReason.MODE_PASS), CLUSTER, 0.0)
    done(cache)
    assert files(tmp_path) == []


def test_there_is_a_limit_to_files(
    cache: RingCache, tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MOST_FILES", 3)
    names = [("/", f"x{n}") for n in range(6)]
    for name in names:
        cache.keep(name, entry(), CLUSTER, 0.0)
    done(cache)
    assert sorted(saved.name for saved in cache.load_all()) == names[3:]
    # Those of earlier starts count too.
    for age, name in enumerate(names[:3], 1):
        (tmp_path / "rings" / file_name(name)).write_bytes(encode_saved(SAVED))
        os.utime(tmp_path / "rings" / file_name(name), (wall.now - age, wall.now - age))
    for name in names[3:]:
        os.utime(tmp_path / "rings" / file_name(name), (wall.now, wall.now))
    os.utime(tmp_path / "rings" / file_name(names[5]), (wall.now - KEPT_FOR - 1,) * 2)
    RingCache(tmp_path / "rings", wall).close()
    again = RingCache(tmp_path / "rings", wall)
    done(again)
    assert {file.name for file in files(tmp_path)} == {file_name(name) for name in (*names[3:5], names[0])}
    monkeypatch.setattr(cache_module, "MOST_BYTES_READ", len(encode_saved(SAVED)))
    assert len(again.load_all()) <= 2


def test_a_ring_that_is_too_large_is_told_and_not_kept(
    cache: RingCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.keep(X, entry(), CLUSTER, 0.0)
    monkeypatch.setattr(cache_module, "MOST_BYTES", 300)
    cache.keep(X, entry({A: 2}), CLUSTER, 0.0)
    done(cache)
    assert files(tmp_path) == []
    (told,) = warnings(caplog)
    assert "a ring is not kept" in told


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    target = path.parent.parent / "target"
    target.write_bytes(encode_saved(SAVED))
    path.symlink_to(target)


def other(path: Path) -> None:
    path.write_bytes(encode_saved(Saved(("/", "y"), *CLUSTER, CONSISTENT_HASH, False, at=1.0)))


@pytest.mark.parametrize("make", [fifo, link, other, Path.mkdir, lambda path: path.write_bytes(b"{")])
def test_a_file_that_is_wrong_is_told_once_by_name(
    cache: RingCache, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "rings" / file_name(SAVED.name)
    make(path)
    for _ in range(3):
        assert (cache.load(SAVED.name), cache.load_all()) == (None, [])
    (told,) = warnings(caplog)
    assert told.startswith(f"ring_cache_dir: {str(path)!r} is ignored: ")


def test_the_age_of_a_reading_of_the_future_is_not_known(cache: RingCache, wall: Wall) -> None:
    at = Saved(X, None, frozenset(), frozenset(), "topic", False, at=wall.now - 5)
    assert cache.age(at) == 5.0
    wall.now -= 6
    assert cache.age(at) is None


def test_a_folder_that_cannot_be_written_to_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for check in (RingCache, cache_module.check_folder):
        with pytest.raises(ConfigError, match=r"^ring_cache_dir: .* cannot be written to"):
            check(tmp_path / "file" / "rings")
    cache_module.check_folder(tmp_path / "absent" / "rings")
    assert not (tmp_path / "absent").exists()


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file, folder or link another user's."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_folder_or_link_of_another_user_is_refused_and_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wall: Wall
) -> None:
    behind, link = tmp_path / "behind", tmp_path / "rings"
    behind.mkdir()
    old = behind / file_name(X)
    old.write_bytes(encode_saved(SAVED))
    os.utime(old, (wall.now - KEPT_FOR - 1,) * 2)
    link.symlink_to(behind)
    given_away(link, monkeypatch)
    for check in (lambda folder: RingCache(folder, wall), cache_module.check_folder):
        with pytest.raises(
            ConfigError, match=r"^ring_cache_dir: .* is a symbolic link of another user \(uid \d+\), so"
        ):
            check(link)
    link.unlink()
    given_away(behind, monkeypatch)
    for check in (lambda folder: RingCache(folder, wall), cache_module.check_folder):
        with pytest.raises(ConfigError, match=r"^ring_cache_dir: .* is a folder of another user .* name a folder of"):
            check(behind)
    assert list(behind.iterdir()) == [old]


def test_a_link_of_this_user_is_followed(tmp_path: Path, wall: Wall) -> None:
    """As systemd makes one of CacheDirectory= with DynamicUser=."""
    (tmp_path / "behind").mkdir(0o700)
    (tmp_path / "rings").symlink_to(tmp_path / "behind")
    cache_module.check_folder(tmp_path / "rings")
    cache = RingCache(tmp_path / "rings", wall)
    cache.keep(X, entry(), CLUSTER, 0.0)
    done(cache)
    cache.close()
    assert [file.name for file in (tmp_path / "behind").iterdir()] == [file_name(X)]


def test_a_folder_that_others_may_write_to_is_told(
    tmp_path: Path, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rings").mkdir()
    (tmp_path / "rings").chmod(0o1777)
    RingCache(tmp_path / "rings", wall).close()
    (told,) = warnings(caplog)
    assert told.startswith(
        f"ring_cache_dir: others than its owner may write to {str(tmp_path / 'rings')!r} (mode 1777)"
    )
    caplog.clear()
    RingCache(tmp_path / "rings" / "own", wall).close()
    assert warnings(caplog) == []
    assert (tmp_path / "rings" / "own").stat().st_mode & 0o777 == 0o700


def test_a_file_of_another_user_is_not_believed(
    cache: RingCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rings" / file_name(SAVED.name)
    path.write_bytes(encode_saved(SAVED))
    assert cache.load(SAVED.name) == SAVED
    given_away(path, monkeypatch)
    assert (cache.load(SAVED.name), cache.load_all()) == (None, [])
    (told,) = warnings(caplog)
    assert "is ignored: it belongs to another user (uid " in told


def test_a_start_removes_no_file_but_its_own(tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "rings"
    folder.mkdir(0o700)
    strange = [folder / name for name in ("notes.ring.json", ".ring-x.tmp.bak", "a.tmp", file_name(X))]
    for path in strange:
        path.write_text("x")
    (folder / file_name(SAVED.name)).write_bytes(encode_saved(SAVED))
    (folder / ".ring-abc.tmp").write_text("half")
    for path in folder.iterdir():
        os.utime(path, (wall.now - KEPT_FOR - 1,) * 2)
    if os.geteuid() == 0:
        given_away(strange[-1], monkeypatch)
    else:  # nobody else's can be made
        strange.pop()
    cache = RingCache(folder, wall)
    done(cache)
    cache.close()
    assert {path.name for path in folder.iterdir()} == {path.name for path in strange}


def test_names_that_run_together_have_files_of_their_own() -> None:
    names = [("a", "bc"), ("ab", "c"), ("", "abc"), ("1:a", "b"), ("/", "../../x"), ("/", "x" * 255)]
    found = {file_name(name) for name in names}
    assert len(found) == len(names)
    assert all("/" not in name and len(name) < 64 for name in found)
