"""How much is tested: what every change has to pass, or with `KERNREC_TEST_PROFILE=deep` all that can be."""

import os

DEEP = os.environ.get("KERNREC_TEST_PROFILE") == "deep"
"""Whether more examples are drawn, and tests that are marked `deep` run, too."""
