"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("detrain", deadline=None)  # machines are busy: no test is timed
settings.load_profile("detrain")
