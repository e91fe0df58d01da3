"""Test which problems and shapes are accepted, and the laws of the FLOPs, bytes, names and keys of problems."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.op import Problem, all_ops, find_op, parse_shape, problem_from_key
from kernrec.op.dtype import FORMATS
from kernrec.op.problem import LARGEST, Op

MATMUL, CONV2D = find_op("matmul"), find_op("conv2d")


@st.composite
def matmuls(draw: st.DrawFn) -> Problem:
    dims = {name: draw(st.integers(1, 20_000)) for name in "mnk"}
    return MATMUL.problem(draw(st.sampled_from(MATMUL.dtypes)), draw(st.sampled_from(MATMUL.layouts)), **dims)


@st.composite
def convolutions(draw: st.DrawFn, dtypes: Sequence[str], most: int, largest: int) -> Problem:
    """Draw a convolution of at most `most` images, whose height and width are at most `largest`."""

    def size(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    groups = size(1, 3)
    dims = {"n": size(1, most), "c": groups * size(1, most), "k": groups * size(1, most), "groups": groups}
    dims |= {"h": size(1, largest), "w": size(1, largest), "r": size(1, most + 1), "s": size(1, most + 1)}
    dims |= {"stride": size(1, most + 1), "padding": size(0, 3), "dilation": size(1, most)}
    for extent, taps in (("h", "r"), ("w", "s")):
        assume(dims["dilation"] * (dims[taps] - 1) < dims[extent] + 2 * dims["padding"])
    return CONV2D.problem(draw(st.sampled_from(dtypes)), draw(st.sampled_from(CONV2D.layouts)), **dims)


@st.composite
def others(draw: st.DrawFn) -> Problem:
    op = draw(st.sampled_from([op for op in all_ops() if op.name not in ("matmul", "conv2d")]))
    dtype = draw(st.sampled_from(op.dtypes))
    dims = {dim.name: draw(st.integers(dim.minimum, min(dim.maximum, 50))) for dim in op.dims}
    if op.name == "attention":
        dims |= {"heads": dims["heads"] * dims["kv_heads"], "keys": dims["keys"] + dims["queries"]}
        dims |= {"kv_dtype": 0} | ({} if dtype == "f8e4m3" else {"scales": 0, "output": 0})
        dims |= {} if dims["causal"] or dims["queries"] == 1 else {"window": 0}
    if op.name == "moe":
        dims |= {
            "experts": dims["experts"] * dims["ep"] * dims["topk"],
            "intermediate": dims["intermediate"] * dims["tp"],
        }
    return op.problem(dtype, draw(st.sampled_from(op.layouts)), **dims)


any_convolution = convolutions(CONV2D.dtypes, 3, 12)
problems = st.one_of(matmuls(), any_convolution, others())


def refusal(op: Any, **arguments: Any) -> str:
    with pytest.raises(UsageError) as caught:
        op.problem(**arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@given(problems)
def test_key_reads_back_as_the_same_problem(problem):
    again = problem_from_key(problem.key)
    assert again == problem
    assert hash(again) == hash(problem)
    assert again.key == problem.key


def test_key_contains_every_dimension_dtype_and_layout():
    assert MATMUL.problem(m=1, n=2, k=3).key == "matmul[m=1,n=2,k=3]f32,nn"
    key = "conv2d[n=1,c=64,h=56,w=56,k=64,r=3,s=3,stride=1,padding=0,dilation=1,groups=1]f16,nhwc"
    assert CONV2D.problem("half", "NHWC", c=64, h=56, w=56, k=64).key == key


@pytest.mark.parametrize(
    "key", ["", "matmul", "matmul[m=1,n=2,k=3]", "matmul[m=1,n=2,k=3]f32,nn;", "a\nb", "x[]f32,nn"]
)
def test_invalid_key_is_refused(key):
    with pytest.raises(UsageError):
        problem_from_key(key)


@given(matmuls())
def test_matmul_counts_two_flops_per_multiply_add_and_each_element_once(problem):
    m, n, k = problem.dim.values()
    assert problem.flops == 2 * m * n * k
    if problem.dtype in FORMATS:  # `test_moe.py` tests the bytes of quantized dtypes
        return
    size = problem.names["dtype_bytes"]
    extra = 8 + m * n if problem.names["scaled"] else 0  # two scales, and a 2-byte instead of a 1-byte result
    assert problem.bytes == (m * k + k * n + m * n) * size + extra


@given(any_convolution)
def test_bytes_count_only_input_elements_that_a_tap_reads(problem):
    d = problem.sizes

    def met(size: int, outputs: int, taps: int) -> int:
        positions = {
            i * d["stride"] + j * d["dilation"] - d["padding"] for i, j in product(range(outputs), range(taps))
        }
        return len(positions & set(range(size)))

    touched = d["n"] * d["c"] * met(d["h"], d["p"], d["r"]) * met(d["w"], d["q"], d["s"])
    assert problem.tensors["x"].touched == touched
    elements = touched + problem.tensors["w"].elements + problem.tensors["y"].elements
    assert problem.bytes == elements * problem.names["dtype_bytes"]


@given(problems)
def test_bytes_never_exceed_the_tensors_and_halve_with_the_dtype(problem):
    assert 0 < problem.bytes <= sum(tensor.bytes for tensor in problem.tensors.values())
    op = problem.definition
    if op.name == "moe":  # moe scores are f32 in every dtype
        return
    dims = {name: value for name, value in problem.dim.items() if name not in ("scales", "output")}  # 8-bit types only
    single, half = (op.problem(dtype, problem.layout, **dims) for dtype in ("f32", "f16"))
    assert single.bytes == 2 * half.bytes
    assert single.flops == half.flops


def test_problem_names_include_dimensions_dtype_and_layout():
    names = CONV2D.problem("f16", "nhwc", c=8, h=10, w=9, k=4, stride=2, padding=1).names
    assert {key: names[key] for key in ("n", "r", "p", "q", "dtype", "layout", "dtype_bytes")} == {
        "n": 1, "r": 3, "p": 5, "q": 5, "dtype": "f16", "layout": "nhwc", "dtype_bytes": 2,
    }  # fmt: skip
    assert MATMUL.problem(m=1, n=2, k=3).names == {
        "m": 1, "n": 2, "k": 3, "batch": 1, "bias": 0, "activation": 0, "scales": 0, "output": 0,
        "scaled": 0, "dtype": "f32", "layout": "nn", "dtype_bytes": 4,
    }  # fmt: skip


def test_unknown_dimension_is_named_even_if_another_is_missing():
    assert "unknown matmul dimension 'x'" in refusal(MATMUL, m=1, n=1, k=1, x=2)
    assert "did you mean stride" in refusal(CONV2D, c=64, h=56, w=56, k=64, strid=2)
    assert "did you mean padding" in refusal(CONV2D, c=64, h=56, w=56, paddin=1)
    assert "unknown" in refusal(MATMUL, m=1, n=1, k=1, self=2)


@pytest.mark.parametrize("value", [0, -1, -(2**70), 2**31, pytest.param(10**5000, id="5001 digits")])
def test_dimension_out_of_range_is_refused_with_the_range(value):
    message = refusal(MATMUL, m=value, n=1, k=1)
    assert "matmul dimension m (rows of a and c)" in message
    assert f"1 to {LARGEST}" in message


@pytest.mark.parametrize("value", [1.5, 4.0, "4", True, float("nan"), [4], pytest.param("x" * 10_000, id="long")])
def test_fractional_dimension_is_refused(value):
    assert "expected a whole number" in refusal(MATMUL, m=value, n=1, k=1)


def test_tensor_too_large_for_32_bit_indexes_is_named():
    large = MATMUL.problem(m=10**5, n=10**5, k=1).too_large
    assert large is not None
    assert "tensor c has 100000 x 100000 = 10000000000 elements" in large
    fitting = MATMUL.problem(m=LARGEST, n=1, k=1)
    assert fitting.flops == 2 * LARGEST
    assert fitting.too_large is None


def test_groups_must_divide_the_channels():
    assert refusal(CONV2D, c=64, h=8, w=8, k=63, groups=2) == "conv2d groups=2 must divide c=64 and k=63"


def test_filter_larger_than_the_padded_input_is_refused():
    message = refusal(CONV2D, c=1, h=1, w=9, k=1)
    assert message == (
        "conv2d has no output: the filter spans 3 (r=3, dilation=1) but the padded input only 1 (h=1, padding=0)"
    )


@pytest.mark.parametrize(
    ("typed", "dtype"), [("fp16", "f16"), ("Half", "f16"), ("float32", "f32"), ("bfloat16", "bf16"), ("double", "f64")]
)
def test_dtypes_accept_their_usual_spellings(typed, dtype):
    assert MATMUL.problem(typed, m=1, n=1, k=1).dtype == dtype


@pytest.mark.parametrize(("typed", "name"), [
    *[("conv", "conv2d"), ("Conv-2D", "conv2d"), ("conv_2d", "conv2d"), ("mm", "matmul"), ("GEMM", "matmul")],
    *[("mv", "matvec"), ("gemv", "matvec"), ("mha", "attention"), ("FlashAttention", "attention")],
    *[("attn", "attention"), ("layer_norm", "layernorm"), ("RMS-Norm", "rmsnorm"), ("sum", "reduce")],
])  # fmt: skip
def test_ops_are_found_by_alias_and_loose_spelling(typed, name):
    assert find_op(typed).name == name


def test_op_names_and_aliases_are_unique():
    names = [name for op in all_ops() for name in (op.name, *op.aliases)]
    assert len(names) == len(set(names))
    assert all(find_op(name) is op for op in all_ops() for name in (op.name, *op.aliases))


names = st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name not in ("dtype", "layout"))


@given(
    st.dictionaries(names, st.integers(-(10**15), 10**15), min_size=1), st.sampled_from([",", " ", ", ", "; ", " ,\t"])
)
def test_written_shape_reads_back(shape, separator):
    assert parse_shape(separator.join(f"{name}={value}" for name, value in shape.items())) == shape


def test_shape_ignores_spaces_case_and_a_trailing_comma():
    assert parse_shape(" M = 1, N=+2 ;K =3, ") == {"m": 1, "n": 2, "k": 3}


def test_suffix_k_means_1024():
    assert parse_shape("m=4k,n=1K,k=4096") == {"m": 4096, "n": 1024, "k": 4096}


@pytest.mark.parametrize("text", ["64,32,4k", "64x32x4k", " 64 X 32 x 4096 ", "64 32 4096"])
def test_shape_without_names_follows_the_order_of_dimensions(text: str) -> None:
    assert MATMUL.problem(**parse_shape(text)) == MATMUL.problem(m=64, n=32, k=4096)


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_dimensions_can_be_given_by_any_alias(op: Op) -> None:
    names = [name for dim in op.dims for name in (dim.name, *dim.aliases)]
    assert len(set(names)) == len(names)
    dims = {dim.name: 8 for dim in op.dims if dim.default is None}
    for dim in op.dims:
        for alias in dim.aliases:
            size = dims.get(dim.name, dim.minimum)
            aliased = {name: value for name, value in dims.items() if name != dim.name} | {alias: size}
            assert op.problem(**aliased) == op.problem(**dims | {dim.name: size})


def test_ambiguous_alias_or_wrong_number_of_sizes_is_refused(refuses: Any) -> None:
    refuses(lambda text: find_op("attention").problem(**parse_shape(text)), ["seq=4,heads=2,s=4,d=8", "2,4,64"])
    refuses(lambda text: MATMUL.problem(**parse_shape(text)), ["64,64", "64x64x64x64", "64,n=2"])


def test_malformed_shape_is_refused_in_one_line(refuses):
    refuses(parse_shape, [
        "", "m", "=4", "m=", "m=1.5", "m=1e3", "m=4m", "m=0x10", "m=1=2", "m=٣", "m=" + "9" * 5000, "m=1,m=2",
        "m=1,dtype=f16", "4096*4096*4096",
    ])  # fmt: skip


@given(st.text(max_size=60))
def test_parse_shape_returns_integers_or_raises_a_usage_error(text):
    try:
        shape = parse_shape(text)
    except UsageError:
        return
    assert shape
    assert all(type(value) is int for value in shape.values())
