"""The parts that compare the same ways on other scenes: quorum queues, sizes, numbers of queues, weights."""

from bench.long.scene import PERSISTENT, Scene, compared
from bench.world import World

_QUORUM = {"x-queue-type": "quorum", "x-max-length": 1000}
_SIZES = 16, 128, 1 << 10, 16 << 10, 128 << 10, 1 << 20
_FEW_BYTES = {"x-max-length-bytes": 8 << 20, "x-overflow": "drop-head"}
_QUEUES = 2, 20, 200, 2000
_WEIGHTS = (1,), (100,), (10_000,), (1, 10, 100, 1_000)


def quorum(world: World) -> str:
    """Persistent messages to quorum queues."""
    scene = Scene("quorum, persistent", "bench.quorum", _names("quorum", 8), mode=PERSISTENT, arguments=_QUORUM)
    return compared(world, [scene], "queues")


def sizes(world: World) -> str:
    """Bodies of 16 bytes to a mebibyte."""
    scenes = [
        Scene(
            _bytes(size), f"bench.size{size}", _names(f"size{size}", 8), size=size, arguments=_FEW_BYTES, relayed=True
        )
        for size in _SIZES
    ]
    return compared(world, scenes, "body")


def queues(world: World) -> str:
    """From two queues to two thousand."""
    scenes = [Scene(f"{count:,}", f"bench.n{count}", _names(f"n{count}", count)) for count in _QUEUES]
    return compared(world, scenes, "queues")


def weights(world: World) -> str:
    """Eight queues with weights up to the greatest there is."""
    scenes = [
        Scene(", ".join(f"{w:,}" for w in those), f"bench.w{sum(those)}", _names(f"w{sum(those)}", 8), those)
        for those in _WEIGHTS
    ]
    return compared(world, scenes, "weights, in turn")


def _names(kind: str, count: int) -> list[str]:
    return [f"bench.{kind}.q{number}" for number in range(count)]


def _bytes(size: int) -> str:
    if size < 1 << 10:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
