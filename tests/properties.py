"""How many examples a property gets."""

from hypothesis import settings


def examples(most: int) -> settings:
    """Return the settings of a property that gets so many examples in `make test-all`, and fewer in `make test`.

    The share is the one of the profile in force (tests/conftest.py), of which properties without settings get 100.
    """
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(most * profile.max_examples // 100, 1))
