"""Indented JSON is that of the standard library, to the letter."""

import json
from enum import IntEnum, StrEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.util.indented_json import json_pieces


class Word(StrEnum):
    """A text that is an enumeration."""

    A = "ä"


class Number(IntEnum):
    """A number that is an enumeration."""

    B = 7


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(Word.A) | st.just(Number.B)
) | st.floats().map(np.float64)
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats() | st.just(Word.A)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


@given(VALUES, st.integers(0, 3))
def test_text_equals_the_standard_library(value, levels):
    assert "".join(json_pieces(value, levels=levels)) == json.dumps(value, indent=2)


def test_every_piece_of_a_long_answer_is_short():
    layer = {"choices": [{"latency_s": 1e-3}] * 5}
    assert max(map(len, json_pieces({"layers": [layer] * 100}))) < 1000


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": [b"x"]}, {(1,): 2}])
def test_other_objects_are_refused(value):
    with pytest.raises(TypeError):
        list(json_pieces(value))
