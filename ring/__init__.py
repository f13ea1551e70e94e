"""The consistent-hash ring: which destination owns which key. A pure function of bindings; no I/O."""

from ring import compiled

compiled.choose()
