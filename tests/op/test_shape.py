"""Test the parsing of shapes as people type them."""

from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.op import parse_shape

names = st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name not in ("dtype", "layout"))


@given(
    st.dictionaries(names, st.integers(-(10**15), 10**15), min_size=1), st.sampled_from([",", " ", ", ", "; ", " ,\t"])
)
def test_written_shape_reads_back(shape, separator):
    assert parse_shape(separator.join(f"{name}={value}" for name, value in shape.items())) == shape


def test_spaces_case_and_a_trailing_comma_are_ignored():
    assert parse_shape(" M = 1, N=+2 ;K =3, ") == {"m": 1, "n": 2, "k": 3}


def test_suffix_k_means_1024():
    assert parse_shape("m=4k,n=1K,k=4096") == {"m": 4096, "n": 1024, "k": 4096}


def test_malformed_shape_is_refused_in_one_line(refuses):
    refuses(parse_shape, [
        "", "m", "=4", "m=", "m=1.5", "m=1e3", "m=4m", "m=0x10", "m=1=2", "m=٣", "m=" + "9" * 5000, "m=1,m=2",
        "m=1,dtype=f16", "4096x4096x4096",
    ])  # fmt: skip


@given(st.text(max_size=60))
def test_any_text_gives_integers_or_a_usage_error(text):
    try:
        shape = parse_shape(text)
    except UsageError:
        return
    assert shape
    assert all(type(value) is int for value in shape.values())
