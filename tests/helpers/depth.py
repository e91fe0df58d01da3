"""How much is tested: what every change has to pass, or with `KERNREC_TEST_PROFILE=deep` all that can be."""

import os

from hypothesis import settings

DEEP = os.environ.get("KERNREC_TEST_PROFILE") == "deep"
"""Whether more examples are drawn, and tests that are marked `deep` run, too."""


def few_examples(count: int) -> settings:
    """Fewer examples of a property than of others, as each takes long: `count`, and if deep 20 times as many."""
    return settings(max_examples=20 * count if DEEP else count, deadline=None)
