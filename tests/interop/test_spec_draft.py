"""Test drafting a spec from a kernel source and a few launch options."""

import tomllib

import numpy as np
import pytest

from kernrec.interop.spec_draft import draft_spec
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel.spec import ScalarArgument
from kernrec.profile.tensor_values import sample_tensors
from tests.helpers.paths import ROOT, beside

pytest.importorskip("cupy", reason="compiling needs CuPy")

SAXPY = ROOT / "docs/examples/saxpy.cu"


@pytest.fixture
def rows(write):
    return write(beside(__file__, "spec_draft.cu"), "rows.cu")


def test_launch_options_produce_the_spec_in_the_guide():
    words = LaunchWords(
        grid="(width + BX - 1) / BX, ceil(height / block_y)",
        block="16x16,32x8,16x8",
        arguments=("width=4096", "height=2160", "image=f32[height,width]"),
    )
    draft = draft_spec(ROOT / "docs/examples/blur.cu", words)
    kernel = draft.kernel()
    assert {tunable.name: (tunable.values, tunable.macro) for tunable in kernel.tunables} == {
        "bx": ((16, 32), "BX"),
        "by": ((16, 8), "BY"),
    }
    problem = kernel.definition.problem()
    assert problem.sizes == {"width": 4096, "height": 2160}
    assert problem.tensors["image"].shape == (2160, 4096)
    assert (problem.tensors["blurred"].elements, problem.tensors["blurred"].role) == (4096 * 2160, "output")
    (launch,) = kernel.launches
    names = {"width": 100, "height": 100, "bx": 32, "by": 8}
    assert [axis.evaluate(names) for axis in launch.grid] == [4, 13, 1]
    tried = [
        (x, y) for x in (16, 32) for y in (16, 8) if all(c.evaluate({"bx": x, "by": y}) for c in kernel.constraints)
    ]
    assert tried == [(16, 16), (16, 8), (32, 8)]
    assert draft.assumed == ("width * height elements in blurred",)


def test_block_size_is_tunable_unless_one_value_is_given():
    words = LaunchWords(grid="ceil(n/blockDim.x)", arguments=("n=5000", "a=2.5"))
    (tunable,) = draft_spec(SAXPY, words).kernel().tunables
    assert (tunable.name, tunable.values, tunable.launch) == ("block_x", (64, 128, 256, 512), True)
    kernel = draft_spec(SAXPY, LaunchWords(words.entry, words.grid, "192", words.arguments)).kernel()
    assert kernel.tunables == ()
    assert kernel.launches[0].grid[0].evaluate({"n": 5000}) == 27
    assert kernel.spec["launch"][0]["arguments"] == ["f32 2.5", "x", "y", "i32 n"]


@pytest.mark.parametrize("text", ["1e-6", "1E-6", "1e-6f", ".000001", "0.0000010"])
def test_draft_accepts_c_notation_of_floats(text):
    kernel = draft_spec(SAXPY, LaunchWords(grid="1", arguments=("n=5000", f"a={text}"))).kernel()
    (fraction, *_) = kernel.launches[0].arguments
    assert isinstance(fraction, ScalarArgument)
    assert fraction.value.evaluate({}) == 1e-6


def test_buffer_of_packed_weights_has_an_eighth_of_the_elements():
    words = LaunchWords(grid="ceil(n/block_x)", arguments=("n=4096", "a=2", "x=f32[n/8]"))
    problem = draft_spec(SAXPY, words).kernel().definition.problem()
    assert problem.tensors["x"].shape == (512,)


def test_unknown_block_size_is_requested(tmp_path, refuses):
    (path := tmp_path / "a.cu").write_text('extern "C" __global__ void a(int* x) { x[threadIdx.x] = 1; }')
    refuses(lambda: draft_spec(path, LaunchWords(grid="ceil(8/block_x)")))


@pytest.mark.parametrize(("entry", "arguments", "values", "says"), [
    ("gather", ("c=64", "x=f32[5000*c]", "idx=i32[n]", "y=f32[n*c]"), {"idx": "index x c"}, "idx uniform over x"),
    ("pairs", ("x=f32[600]",), {"idx": "index x 2"}, "idx uniform over x"),
    ("scatter", ("y=f32[33]",), {"idx": "index y"}, "idx uniform over y"),
    (
        "spmv",
        ("off=i32[n+1]", "col=i32[9*n]", "val=f32[9*n]"),
        {"off": "offsets col, val", "col": "index x"},
        "off ascending over col and val",
    ),
    ("count", (), {}, ""),
    ("scatter", ("idx=zeros:u32[n]",), {"idx": "zeros"}, ""),
])  # fmt: skip
def test_index_values_cover_the_tensor_they_index(tmp_path, entry, arguments, values, says):
    (path := tmp_path / "indexed.cu").write_text(beside(__file__, "indexed.cu"))
    draft = draft_spec(path, LaunchWords(entry, "ceil(n/block_x)", arguments=("n=1000", *arguments)))
    kernel = draft.kernel()
    tensors = kernel.spec["problem"]["tensors"]
    assert {name: each["values"] for name, each in tensors.items() if "values" in each} == values
    assert says in "; ".join(draft.assumed)
    filled = sample_tensors(kernel, kernel.definition.problem())
    for name, text in values.items():
        kind, _, indexed = text.partition(" ")
        if kind == "index":
            target, _, step = indexed.partition(" ")
            most = len(filled[target]) // int({"c": 64}.get(step) or step or 1)
            assert 0.9 * most < filled[name].max() < most
            assert 0.4 * most < filled[name].mean() < 0.6 * most
        elif kind == "offsets":
            assert filled[name].tolist() == [9 * row for row in range(1001)]


def test_missing_parts_of_a_draft_are_listed_and_marked(rows, refuses):
    draft = draft_spec(rows, LaunchWords(), suggest=True)
    assert draft.missing == (
        "--shared BYTES", '--grid, such as --grid "ceil(n/64)"', "N=NUMBER", "flip=BYTE", "m=NUMBER",
        "step=NUMBER", "A=f32[ELEMENTS]", "index=i32[ELEMENTS]", "out=u8[ELEMENTS]",
    )  # fmt: skip
    assert draft.text.count('"?"') == len(draft.missing) + 1  # a comment in the draft also has "?"
    assert "# Macros that the source fixes: WIDTH (8)." in draft.text
    spec = tomllib.loads(draft.text)
    assert spec["tunables"]["threads"]["values"] == [64, 128, 256]
    assert spec["launch"][0]["block"] == ["threads"]
    refuses(lambda: draft.kernel())


def test_draft_accepts_scalars_vectors_files_and_shared_memory(rows, tmp_path):
    np.save(tmp_path / "index.npy", np.arange(64, dtype=np.int32))
    arguments = ("N=1024", "flip=true", "m=64", "step=-3", "out=[N]", f"index=@{tmp_path / 'index.npy'}")
    words = LaunchWords(None, "ceil(N/THREADS)", "64,256", arguments, shared="4 * block_x")
    draft = draft_spec(rows, words)
    kernel = draft.kernel()
    tensors = kernel.definition.problem().tensors
    assert [(name, t.dtype, t.elements) for name, t in tensors.items()] == [
        ("a", "f32", 1024 * 64 * 4),
        ("index", "i32", 64),
        ("out", "u8", 1024),
    ]
    assert kernel.spec["launch"][0]["arguments"] == [
        "a", "index", "out", "f32 1.0", "i64 n", "u8 flip", "i32 m", "i32 -3",
    ]  # fmt: skip
    assert kernel.launches[0].shared.evaluate({"threads": 256}) == 1024
    assert draft.assumed == ("scale = 1", "n * m * 4 elements in A")
    constraint = kernel.constraints[0]
    assert constraint.evaluate({"threads": 256})
    assert not constraint.evaluate({"threads": 512})


def test_wrong_options_are_refused_in_one_line(rows, refuses):
    refuses(lambda words: draft_spec(rows, words), [
        LaunchWords("rwos"), LaunchWords(arguments=("M=3",)), LaunchWords(arguments=("m",)),
        LaunchWords(arguments=("m=-1",)),
        LaunchWords(arguments=("m=1", "m=2")), LaunchWords(arguments=("m=2.5",)),
        LaunchWords(arguments=("m=3000000000",)), LaunchWords(arguments=("scale=big",)),
        LaunchWords(arguments=("out=f33[4]",)), LaunchWords(arguments=("out=4",)),
        LaunchWords(arguments=("out=f32[k]",)), LaunchWords(tunables=("TREADS=1",)),
        LaunchWords(tunables=("WIDTH=4,8",)), LaunchWords(tunables=("THREADS=a",)), LaunchWords(block="2048"),
        LaunchWords(block="64x32"), LaunchWords(block="16x16,512"), LaunchWords(grid="1,2,3,4"),
        LaunchWords(grid="ceil(n/", block="128"), LaunchWords(grid="__import__('os')"),
    ])  # fmt: skip


def test_source_without_a_matching_launch_is_refused_in_one_line(write, refuses):
    refuses(lambda source: draft_spec(write(source, "a.cu"), LaunchWords(block="32,64")), [
        "void f() {}", "__global__ void a() {} __global__ void b() {}",
        "template <int N> __global__ void a(int* x) { x[0] = N; }", "__global__ void a(int* x) { x[0] = lower_case; }",
        "__global__ void a(int* x) { x[threadIdx.x] = 1; }",
    ])  # fmt: skip
