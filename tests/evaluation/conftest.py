"""Property tests run the same cases every time and may take as long as the machine needs."""

from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")
