"""Rings, for `equal`."""

from random import Random

import numpy as np

from ring.destination import MAX_WEIGHT, Destination
from ring.hashing import SLOTS
from ring.ring import owners
from tests.fuzz.said import Say


def rings(rng: Random, say: Say) -> None:
    """Who owns some slots of a ring with few or many destinations, of weights that are alike or not."""
    heaviest = rng.choice((1, 2, MAX_WEIGHT))
    weights = {
        Destination(rng.choice(("queue", "exchange")), f"{rng.getrandbits(32):x}"): rng.randint(1, heaviest)
        for _ in range(rng.choice((1, 2, 10, 300)))
    }
    slots = np.array([rng.randrange(SLOTS) for _ in range(20)], np.int64)
    say(owners(weights, slots).tolist())
