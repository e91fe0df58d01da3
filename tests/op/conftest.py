"""Property tests have no time limit per example: the machine that runs them may be busy."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
