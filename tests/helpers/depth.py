"""Test depth: the tests that every change must pass, or with `KERNREC_TEST_PROFILE=deep` all tests."""

import os

from hypothesis import settings

DEEP = os.environ.get("KERNREC_TEST_PROFILE") == "deep"
"""True if tests draw more examples, and tests marked `deep` run."""


def few_examples(count: int) -> settings:
    """Run a slow property test on `count` examples, or on 20 times as many in the deep profile."""
    return settings(max_examples=20 * count if DEEP else count, deadline=None)
