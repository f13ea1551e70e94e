"""What holds for all tests."""

from hypothesis import settings

# A slow machine is no failure.
settings.register_profile("ringproxy", deadline=None)
settings.load_profile("ringproxy")
