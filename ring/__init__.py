"""The consistent-hash ring: it says which destination owns which key, as a pure function of weights. No I/O."""

from ring import compiled

compiled.choose()
