"""Property tests here are deterministic, and a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("nn", deadline=None, derandomize=True)
settings.load_profile("nn")
