"""Test launch profiles, facts of code, and arguments of launches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.profile.code_facts import facts_of
from kernrec.profile.launch_arguments import read_arguments
from kernrec.profile.launch_profile import ProfileError, fit_profile
from kernrec.profile.tensor_values import load_npy
from kernrec.ptx import TensorMap, parse

PROBES = [{"block": 1, "trips": 4}, {"block": 1, "trips": 6}, {"block": 2, "trips": 9}]


@given(
    st.dictionaries(
        st.sampled_from(["issue", "barriers", "lanes"]), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))
    )
)
def test_linear_counts_are_fitted_exactly(truth):
    counts = [{m: a * p["block"] + b * p["trips"] for m, (a, b) in truth.items()} for p in PROBES]
    profile = fit_profile(PROBES, counts)
    for metric, (a, b) in truth.items():
        assert profile.counts({"block": 7, "trips": 1000})[metric] == 7 * a + 1000 * b


def test_nonlinear_metric_is_refused_by_name():
    counts = [{"issue": p["trips"] ** 2, "barriers": 1} for p in PROBES]
    with pytest.raises(ProfileError, match="issue is not linear in block, trips"):
        fit_profile(PROBES, counts)


@pytest.mark.parametrize(("factors", "tile"), [((64, -4), 64), ((64, 32), 32), ((-4,), 0)])
def test_tile_is_the_least_positive_factor_of_a_block_position(factors, tile):
    products = "".join(f"mul.lo.s32 %r2, %r1, {factor};\n" for factor in factors)
    code = f".reg .b32 %r<3>;\nmov.u32 %r1, %ctaid.x;\n{products}ret;\n"
    ptx = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{{\n{code}}}\n"
    assert facts_of(parse(ptx), "f").tiles == (tile, 0, 0)


@pytest.mark.parametrize(
    "text", ["x=f32[{0}]", "x=texture:u8[{0}x1]", "x=texture(axes={0}):u8[4]", "x=texture(axes=²):u8[4]", "i32:{0}"]
)
def test_numbers_with_thousands_of_digits_are_refused(text):
    with pytest.raises(UsageError):
        read_arguments([text.format("5" * 5000)])


def test_endless_description_is_refused(refuses):
    refuses(lambda: read_arguments(["x" * 70_000]))


@pytest.mark.parametrize("header", ["{'descr': '<f4', 'shape': (", "\0", "{'descr': " + "[" * 5000])
def test_damaged_numpy_header_is_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with pytest.raises(UsageError, match="is not a NumPy file of plain values"):
        load_npy(path)


def test_tensor_map_lists_its_extents_fastest_first():
    arguments = read_arguments(["a=map(box=16x64,swizzle=128,steps=2x1,nan):f16[40x104]", "b=map(box=4):i32[8]"])
    a, b = arguments.order
    assert a == TensorMap("a", "f16", (104, 40), (208,), (64, 16), 128, (1, 2), fill_nan=True)
    assert b == TensorMap("b", "s32", (8,), (), (4,))
    assert arguments.buffers["a"].size == 40 * 104


def test_invalid_tensor_map_description_is_refused(refuses):
    refuses(lambda text: read_arguments([text]), [
        "a=map(swizzle=128):f16[40x104]", "a=map(box=16):f16[40x104]", "a=map(box=16x64,swizle=128):f16[40x104]",
        "a=map(box=16x64):f16",
    ])  # fmt: skip
