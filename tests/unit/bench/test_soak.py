"""The growth of a process as the soak run judges it."""

from bench.soak import Soak


def test_growth_is_from_the_end_of_the_warm_up_to_the_end() -> None:
    soak = Soak()
    for second in range(100):
        soak.samples.append((float(second), 50 if second < 20 else 100 if second < 40 else 104))
    soak.samples[30] = 30.0, 10_000
    assert soak.growth(100) == (100, 104)
