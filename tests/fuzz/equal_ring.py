"""Rings, for `equal`."""

import hashlib
from random import Random

import numpy as np

from ring.destination import MAX_WEIGHT, Destination
from ring.hashing import SLOTS
from ring.ring import Ring, owners
from tests.fuzz.said import Say

_WHOLE = 10
"""The number of rounds of which one compares all slots, and those of a change."""


def rings(rng: Random, say: Say) -> None:
    """Who owns some slots of a ring with few or many destinations, of weights that are alike or not."""
    heaviest = rng.choice((1, 2, MAX_WEIGHT))
    weights = {
        Destination(rng.choice(("queue", "exchange")), f"{rng.getrandbits(32):x}"): rng.randint(1, heaviest)
        for _ in range(rng.choice((1, 2, 10, 300)))
    }
    slots = np.array([rng.randrange(SLOTS) for _ in range(20)], np.int64)
    say(owners(weights, slots).tolist())
    if rng.randrange(_WHOLE) == 0:
        weights = dict(list(weights.items())[:10])
        other = {d: rng.randint(1, heaviest) for d in weights if rng.random() < 0.7} | {Destination("queue", "new"): 1}
        ring = Ring.build(weights)
        say([hashlib.sha256(each.owner_index).hexdigest() for each in (ring, ring.changed(other))])
