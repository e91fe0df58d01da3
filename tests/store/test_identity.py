"""Test identities computed from content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.store import canonical_json, content_hash

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values))
def test_mapping_order_does_not_matter(mapping):
    assert canonical_json(dict(reversed(mapping.items()))) == canonical_json(mapping)


def test_hashes_are_stable_between_versions():
    assert content_hash({"block_m": 64, "split_k": 1}) == "2cbc6e17f022c221"
    assert len(content_hash([1, 2.5, None, "é"], digits=32)) == 32


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_have_no_identity(value):
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(value)
