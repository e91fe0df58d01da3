"""Names of a spec are looked for as whole words."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kernrec.kernel.toml_table import mentions

NAMES = st.text("ab_1", min_size=1, max_size=3).filter(str.isidentifier)


@given(st.text("ab_1 (ä", max_size=12), NAMES)
def test_name_is_matched_only_as_a_whole_word(text, name):
    assert mentions(text, name) == bool(re.search(rf"\b{name}\b", text))
