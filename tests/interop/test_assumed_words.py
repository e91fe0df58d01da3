"""Test the values that `kernrec analyze` assumes for launches that a CUDA file does not describe completely."""

from dataclasses import replace

import numpy as np
import pytest

from kernrec.compile.nvrtc import compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.interop import drafted_code
from kernrec.interop.assumed_words import assumed_words, enlarged_words, with_words
from kernrec.interop.draft import compiled_name
from kernrec.interop.spec_draft import draft_spec
from kernrec.interop.spec_text import LaunchWords
from kernrec.kernel import bind_launches
from kernrec.kernel.binding import PackedArguments
from kernrec.kernel.cuda_signature import signatures
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import parse

SCALE = "__global__ void scale(float *x, int n) { int i = blockIdx.x * 64 + threadIdx.x; if (i < n) x[i] *= 2; }"
ROWS = "__global__ void rows(float *x, int n) { x[blockIdx.x * n + threadIdx.x] = 1; }"
TRANSPOSE = """
#define TILE 32
#define ROWS 8
__global__ void t(float *x, float *y, int n) {
    int i = blockIdx.x * TILE + threadIdx.x, k = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS) y[i * n + k + j] = x[(k + j) * n + i];
}
"""
BOX = """struct Box { float low[3]; int count; };
struct List { int size; float *values; int first() const; };
struct Large { float a[3000000000]; };
"""


@pytest.mark.parametrize(("missing", "source", "kernel", "words"), [
    (["n=NUMBER"], SCALE, "scale", ("n=1048576",)),
    (["n=NUMBER"], ROWS, "rows", ("n=1024", "x=[n*n]")),
    (["m=NUMBER", "n=NUMBER"], SCALE, "scale", ("m=1024", "n=1024")),
    (["n=NUMBER", "offset=NUMBER", "steps=NUMBER"], SCALE, "scale", ("n=1048576", "offset=0", "steps=1")),
    (["x=f32[ELEMENTS]", "--shared BYTES"], SCALE, "scale", ("x=f32[1048576]", "--shared 16384")),
    (['--grid, such as --grid "ceil(n/block_x)"'], SCALE, "scale", ('--grid "ceil(n/block_x)"',)),
    (["--block, which the code never reads"], SCALE, "scale", ("--block 64",)),
    (["--block, which the code never reads"], ROWS, "rows", ("--block 256",)),
    (["box=struct(FIELDS), for 16 bytes of Box"], BOX, "f", ("box=struct(f32:1,f32:1,f32:1,i32:1)",)),
    (["list=struct(FIELDS), for 16 bytes of List"], BOX, "f", ("list=struct(i32:1024,f32[2097152])",)),
    (["list=struct(FIELDS), for 24 bytes of List"], BOX, "f", None),
    (["large=struct(FIELDS), for 12000000000 bytes of Large"], BOX, "f", None),
    (["x=TYPE[ELEMENTS]"], BOX, "f", ("x=zeros:f32[4194304]",)),
    (["a --spec for t, which is passed as cudaTextureObject_t"], SCALE, "scale", None),
])  # fmt: skip
def test_missing_arguments_get_assumed_values(missing, source, kernel, words):
    assert assumed_words(missing, source, kernel, (1, 1), 256, {"x": "Box"}) == words


def test_structure_argument_is_passed_with_the_buffers_of_its_pointers(tmp_path):
    (path := tmp_path / "add.cu").write_text(
        "struct Vector { int count; float *values; };\n"
        'extern "C" __global__ void add(Vector to, Vector from) { int i = threadIdx.x;\n'
        "    if (i < to.count) to.values[i] += from.values[i]; }"
    )
    arguments = ["to=struct(i32:3,f32[4])", "from=struct(i32:4,f32[4])"]
    kernel = draft_spec(path, LaunchWords(grid="1", block="4", arguments=arguments)).kernel()
    problem = kernel.definition.problem()
    tensors = {"to_0": np.ones(4, np.float32), "from_0": np.arange(4, dtype=np.float32)}
    emulate_config(kernel, {}, problem, 80, parse(compile_source(path.read_text(), 80, {}, "add.cu").ptx), tensors)
    assert tensors["to_0"].tolist() == [1, 2, 3, 1]
    with pytest.raises(KernrecError, match="takes a structure with pointers, which kernrec cannot launch"):
        PackedArguments.bound(bind_launches(kernel, {}, problem, 80)[0])


def test_assumed_values_are_added_to_the_users_options():
    words = with_words(LaunchWords(arguments=["n=4"]), ('--grid "ceil(n/block_x)"', "x=f32[4]", "--tune T=1,2"))
    assert (words.grid, words.tunables) == ("ceil(n/block_x)", ["T=1,2"])
    assert (words.arguments, words.assumed) == (["n=4"], ["x=f32[4]"])


def test_draft_is_completed_only_if_assumptions_are_allowed(tmp_path):
    (path := tmp_path / "scale.cu").write_text(SCALE)
    assert draft_spec(path, LaunchWords()).missing
    draft = draft_spec(path, LaunchWords(), assume=True)
    assert not draft.missing
    assert draft.note.startswith('kernrec assumed --block 64, --grid "ceil(n/64)", n=1048576, which the file')
    assert draft_spec(path, LaunchWords(grid="4", block="64", arguments=["n=256"]), assume=True).note == ""


def test_template_without_an_instance_gets_usual_arguments(tmp_path):
    (path := tmp_path / "fill.cu").write_text(
        "template <typename T> __global__ void fill(T *x, int n) { x[blockIdx.x * blockDim.x + threadIdx.x] = n; }"
    )
    draft = draft_spec(path, LaunchWords(), assume=True)
    assert (draft.entry, draft.chosen[0]) == ("fill<float>", "'fill.cu:fill<float>'")


def test_assumed_block_fits_tiles_and_launch_bounds():
    missing = ["--block, which the code never reads"]
    assert assumed_words(missing, SCALE, "scale", (1, 1), 64, {}) == ("--block 64",)
    assert assumed_words(missing, SCALE, "scale", (2, 2), 64, {}) == ("--block 8x8",)
    assert assumed_words(missing, TRANSPOSE, "t", (2, 2), 1024, {}) == ("--block 32x8",)


def test_message_names_the_wheel_of_a_missing_header(tmp_path, monkeypatch):
    monkeypatch.setattr(drafted_code, "_WHEELS", (("cub/absent", "nvidia-cuda-cccl"),))
    (path := tmp_path / "fill.cu").write_text("#include <cub/absent.cuh>\n__global__ void fill(float *x) { *x = 1; }")
    with pytest.raises(UsageError, match=r"cub/absent.cuh.*: pip install nvidia-cuda-cccl$"):
        draft_spec(path, LaunchWords(), assume=True)


def test_assumed_offset_of_zero_does_not_make_buffers_empty(tmp_path):
    (path := tmp_path / "fill.cu").write_text(
        "__global__ void fill(float *x, int n, int start) { int i = start + threadIdx.x; if (i < n) x[i] = 1; }"
    )
    draft = draft_spec(path, LaunchWords(grid="1", block="64"), assume=True)
    assert draft.chosen == ("n=1048576", "start=0")
    assert draft.kernel().definition.problem().tensors["x"].elements == 1048576


def test_message_names_the_template_argument_that_no_caller_sets(tmp_path):
    (path := tmp_path / "fill.cu").write_text("""
template <int N, int PAD> __global__ void fill(float *x) { x[threadIdx.x] = N + PAD; }
template <int PAD> void launch(float *x) { fill<8, PAD><<<1, 32>>>(x); }
""")
    with pytest.raises(UsageError, match=r"does not state PAD of the template fill; .* 'fill\.cu:fill<8, 2>'"):
        draft_spec(path, LaunchWords(), assume=True)


def test_undefined_name_in_a_pragma_is_suggested_as_a_tunable(tmp_path):
    (path := tmp_path / "fill.cu").write_text(
        "__global__ void fill(float *x) {\n#pragma unroll factor\nfor (int i = 0; i < 8; i++) x[i] = factor; }"
    )
    assert "--tune factor=VALUES" in draft_spec(path, LaunchWords(grid="1", block="1")).missing


def test_overloaded_kernels_and_several_instances_are_distinguished(tmp_path):
    (path := tmp_path / "add.cu").write_text(
        "__global__ void add(float *x, int n) { x[threadIdx.x] = n; }\n"
        "__global__ void add(double *x, double *y, int n) { x[threadIdx.x] = y[n]; }\n"
    )
    draft = draft_spec(path, LaunchWords("add", grid="1", block="4", arguments=["n=4"]))
    assert 'entry = "_Z3addPfi"' in draft.text
    assert draft.kernel().launches[0].entry == "_Z3addPfi"
    (kernel,) = signatures("template <typename T, int N> __global__ void set(T *x) {}")
    instances = {"_Z3setIfLi4EEvPT_": 1, "_Z3setIiLi4EEvPT_": 1, "_Z3setIiLi8EEvPT_": 1}
    assert compiled_name(kernel, "set<int, 4>", instances) == "_Z3setIiLi4EEvPT_"


def test_names_of_structure_members_do_not_collide_with_parameters(tmp_path):
    (path := tmp_path / "add.cu").write_text(
        "struct Vector { float *values; };\n"
        "__global__ void add(float *to_0, Vector to) { to_0[threadIdx.x] += to.values[threadIdx.x]; }"
    )
    arguments = ["to_0=f32[4]", "to=struct(f32[8])"]
    draft = draft_spec(path, LaunchWords(grid="1", block="4", arguments=arguments))
    tensors = draft.kernel().definition.problem().tensors
    assert {name: tensor.elements for name, tensor in tensors.items()} == {"to_0": 4, "to_0_member": 8}


def test_size_of_deeply_nested_structures_is_computed_in_linear_time(tmp_path):
    nested = [f"struct S{depth} {{ S{depth - 1} {', '.join(f'm{i}' for i in range(100))}; }};" for depth in range(1, 5)]
    words = assumed_words(
        ["x=TYPE[ELEMENTS]"], "\n".join(["struct S0 { float a; };", *nested]), "f", (1, 1), 256, {"x": "S4"}
    )
    assert words == (f"x=zeros:f32[{2**20 * 100**4}]",)


def test_buffer_is_enlarged_only_after_an_access_beyond_its_end(tmp_path):
    (path := tmp_path / "fill.cu").write_text("__global__ void fill(float *x) { x[threadIdx.x] = 1; }")
    words = LaunchWords(grid="1", block="64")
    draft = draft_spec(path, words, assume=True)
    error = (
        "block (0, 0, 0) thread (0, 0, 0) accesses 4 bytes at offset 8388604 of x, which has 4194304 bytes (address 0)"
    )
    first = enlarged_words(words, draft, error)
    second = enlarged_words(first, draft, error)
    assert (first.assumed, second.assumed) == (("x=f32[4194304]",), ("x=f32[16777216]",))
    assert enlarged_words(second, draft, error) is None
    many = replace(words, assumed=[f"p{number}=f32[8]" for number in range(32)])
    assert enlarged_words(many, draft, error) is None
    assert enlarged_words(words, draft, error.replace("8388604", str(1 << 32))) is None
    assert enlarged_words(words, draft_spec(path, replace(words, arguments=["x=f32[4]"])), error) is None
