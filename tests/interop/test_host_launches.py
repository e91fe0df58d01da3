"""Test that kernel launches are read from host code."""

import tomllib
from operator import mul

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.draft import Draft, kernel_names
from kernrec.interop.host_expressions import literal
from kernrec.interop.host_launches import filled_variables, host_launches
from kernrec.interop.host_program import make_arguments
from kernrec.interop.host_values import HostValues
from kernrec.interop.spec_arguments import SpecTensor
from kernrec.interop.spec_draft import draft_spec
from kernrec.interop.spec_text import LaunchWords, quoted
from kernrec.kernel import Space, bind_launches
from kernrec.kernel.cuda_signature import Parameter
from tests.helpers.needs import needs
from tests.helpers.paths import beside

pytestmark = needs("tree_sitter_cuda")

KERNEL = "__global__ void f(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = i; }\n"


@pytest.mark.parametrize("case", tomllib.loads(beside(__file__, "host_launches.toml"))["launch"])
def test_launch_arguments_become_kernel_parameters_or_numbers(case):
    (launch,) = host_launches(KERNEL + case["host"], "f", [("x", "f32"), ("n", None)])
    assert (launch.grid, list(launch.block), list(launch.arguments)) == (
        case.get("grid"), case["block"], case["arguments"],
    )  # fmt: skip


def test_program_arguments_come_from_the_makefile(tmp_path):
    (tmp_path / "Makefile").write_text("run: $(program)\n\t@echo starts\n\t$(LAUNCHER) ./$(program) 512 3\n")
    argv = make_arguments(tmp_path)
    text = KERNEL + "int main(int argc, char **argv) { int n = atoi(argv[1]); f<<<n, std::stoi(argv[3])>>>(0, n); }"
    (launch,) = host_launches(text, "f", [("x", "f32"), ("n", None)], argv)
    assert (argv, launch.arguments, launch.block) == (["512", "3"], ("n=512",), None)
    assert make_arguments(tmp_path / "none") == []


def test_circular_definitions_terminate():
    (launch,) = host_launches(
        KERNEL + "int a = c, c = a;\nint main() { f<<<a, 64 + c>>>(0, 1); }", "f", [("x", "f32"), ("n", None)]
    )
    assert launch.grid is None
    assert launch.block is None


@pytest.mark.parametrize(
    ("first", "step"), [("1 << 4000000000", "{0} + 1"), ("3", "{0} * {0}"), ("m", "{0} + {0}"), ("0", "{0} + {0}")]
)
def test_exponentially_growing_definitions_terminate_at_once(first, step):
    chain = "".join(f"int a{i + 1} = {step.format(f'a{i}')};\n" for i in range(60))
    program = f"{KERNEL}int main(int m, char **v) {{ int a0 = {first};\n{chain} f<<<a60, 64>>>(0, m); }}"
    (launch,) = host_launches(program, "f", [("x", "f32"), ("n", None)])
    assert launch.grid is None


def test_all_expressions_of_a_launch_share_one_budget(monkeypatch):
    visits, visit = [], HostValues.value
    monkeypatch.setattr(HostValues, "value", lambda *arguments: visits.append(1) or visit(*arguments))
    chain = "".join(f"int a{i + 1} = a{i} + a{i};\n" for i in range(30))
    numbers = [f"n{number}" for number in range(40)]
    kernel = f"__global__ void f({', '.join(f'int {name}' for name in numbers)}) {{}}\n"
    program = f"{kernel}int main(int a0, char **v) {{\n{chain} f<<<1, 64>>>({', '.join(['a30'] * 40)}); }}"
    (launch,) = host_launches(program, "f", [(name, None) for name in numbers])
    assert launch.arguments == ()
    assert len(visits) < 20_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0xFF", "255"), ("0XfFu", "255"), ("0x1Full", "31"), ("010", "8"), ("0", "0"), ("00", "0"), ("0b101", "5"),
        ("1'024UL", "1024"), ("1.5f", "1.5"), ("2.F", "2.0"), ("010.5f", "10.5"),
    ],
)  # fmt: skip
def test_c_literal_is_parsed_to_its_c_value(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ("ceil(1000 / 0.5)", "2000"), ("ceil(1000 / 2.5)", "400"), ("ceil(1000 / 0.0)", None),
        ("ceil(1000 / 32)", "32"), ("ceil(1000 / 256.0 + 1)", "5"), ("static_cast<int>(2.7)", "2"),
        ("(unsigned)(1000 / 256.0) + 1", "4"), ("(int)1e30", None),
        ("max + 1", None), ("1 ? max : 2", None), ("ceil_div * 2", None), ("s[0]", None),
    ],
)  # fmt: skip
def test_host_grid_expression_is_a_number_or_unknown(grid, expected):
    host = f"int main(int max, char **ceil_div) {{ int s[4] = {{}}; f<<<{grid}, 64>>>(max, ceil_div, s[0]); }}"
    (launch,) = host_launches(KERNEL + host, "f", [("max", None), ("ceil_div", None), ("n", None)])
    assert (launch.grid, launch.block, launch.arguments) == (expected, (64,), ())


def test_element_of_an_empty_initializer_is_not_evaluated():
    program = (
        "__constant__ int c; template <int N> __global__ void f() {}\n"
        "int main() { int s[4] = {}; cudaMemcpyToSymbol(c, s[0], 4); f<s[0]><<<1, 1>>>(); }"
    )
    assert filled_variables(program) == {"c": ""}
    assert [launch.kernel for launch in host_launches(program, "f", ())] == ["f<s[0]>"]


def test_parameter_with_a_reserved_name_becomes_a_renamed_dimension(tmp_path):
    (path := tmp_path / "row.cu").write_text(
        "__global__ void row(float *x, int i) { x[i * blockDim.x + threadIdx.x] = i; }\n"
        "int main() { float *x; cudaMalloc(&x, 4096); row<<<1, 64>>>(x, 3); }\n"
    )
    draft = draft_spec(path, LaunchWords())
    assert dict(draft.kernel().definition.problem().dims) == {"i_size": 3}


@pytest.mark.parametrize(("signature", "body", "end"), [
    ("int m, int n", "x[blockIdx.y * n + blockIdx.x * 64 + threadIdx.x] = m;",
     '"ceil(m/64), ceil(n/block_y)" m=1024 n=1024'),
    ("int n, int c", "int i = blockIdx.x; if (i < c) x[(blockIdx.z + blockIdx.y) * n + i] = 1;",
     '"ceil(c/block_x), ceil(n/block_y), ceil(c/block_z)" n=1024 c=1024'),
    ("int n", "x[(blockIdx.y * 32 + threadIdx.y) * n + blockIdx.x * 32 + threadIdx.x] = 1;",
     '"ceil(n/32), ceil(n/32)" n=1024'),
    ("int m, int n", "int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y; if (j + 1 < m) x[j * n + i] = 1;",
     '"ceil(n/32), ceil(m/block_y)" m=1024 n=1024'),
])  # fmt: skip
def test_drafted_command_has_small_example_sizes(tmp_path, signature, body, end):
    (path := tmp_path / "copy.cu").write_text(f"__global__ void copy(float *x, {signature}) {{ {body} }}")
    assert f"--grid {end}" in draft_spec(path, LaunchWords()).command("t4")


def test_template_arguments_of_the_launching_function_are_substituted():
    text = """template <typename T, int B> __global__ void f(T *x) {}
template <typename T, int B> void launch(T *x) { constexpr int half{B / 2}; f<T, half><<<4, B>>>(x); }
template void launch<double, 64>(double *);"""
    (launch,) = host_launches(text, "f", [("x", "f64")])
    assert (launch.kernel, launch.grid) == ("f<double, 32>", "4")


def test_template_arguments_are_substituted_through_callers_and_defaults():
    text = """template <typename T, int B, int P> __global__ void f(T *x, int n) {}
template <typename T, int B = 32> void launch(T *x, int n) { f<T, B, B / 4><<<n / B, B>>>(x, n); }
template <typename V> void run(V *x) { launch<V>(x, 4096); }
int main() { run<double>(nullptr); }"""
    (launch,) = host_launches(text, "f", [("x", "f64"), ("n", None)])
    assert (launch.kernel, launch.grid, launch.block) == ("f<double, 32, 8>", "n/block_x", (32,))
    assert "n=4096" in launch.arguments


def test_message_names_the_file_to_analyze_for_a_kernel_elsewhere(tmp_path):
    for name, text in (
        ("main.cu", "__global__ void f(int *x);\nint main() { f<<<1, 2>>>(0); }"),
        ("f.cu", "__global__ void f(int *x) { *x = 1; }"),
        ("part.cu", "__global__ void part(real *x) { *x = 1; }"),
        ("all.cu", 'typedef float real;\n#include "part.cu"\nint main() { part<<<4, 32>>>(0); }'),
        ("bad.cu", "__global__ void bad(number *x) { *x = 1; }"),
        ("more.cu", '#include "bad.cu"\n'),
    ):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"f\.cu defines f: kernrec analyze \S*f\.cu"):
        draft_spec(tmp_path / "main.cu", LaunchWords())
    with pytest.raises(UsageError, match=r"all\.cu includes this file: kernrec analyze \S*all\.cu"):
        draft_spec(tmp_path / "part.cu", LaunchWords())
    with pytest.raises(UsageError, match=r"more\.cu includes this file: kernrec analyze \S*more\.cu"):
        draft_spec(tmp_path / "bad.cu", LaunchWords())


def test_template_instance_on_two_lines_gets_a_one_line_name():
    program = (
        "template <class T, int N> __global__ void f(T *x) { x[0] = N; }\n"
        "template __global__ void f<float,\n 4>(float *);\n"
    )
    assert kernel_names(program) == ["f<float, 4>"]


@pytest.mark.parametrize("text", ["a\nb", 'a"\\', "\r\t\x00\x1f\x7f", "plain é"])
def test_quoted_text_becomes_a_toml_string(text):
    assert tomllib.loads(f"text = {quoted(text)}") == {"text": text}


def test_multiline_parameter_type_stays_on_a_single_line_of_the_spec():
    tensor = SpecTensor(Parameter("x", True, False, "f32", 1, "const\n[evil]\r\x00 float"), "input", shape=("n",))
    assert tensor.line("x").endswith("  # const [evil] float *x")


def test_draft_that_is_not_toml_gives_a_one_line_error(tmp_path, refuses):
    refuses(lambda: Draft(tmp_path / "k.cu", "f", "name = ", (), ()).kernel())


def test_program_is_analyzed_without_options(tmp_path):
    source = tmp_path / "program.cu"
    source.write_text(
        "#include <stdio.h>\n" + KERNEL + "int main() { int n = 4096; float *x; cudaMalloc(&x, n * sizeof(float));\n"
        'f<<<(n + 255) / 256, 256>>>(x, n); printf("done"); }\n'
    )
    draft = draft_spec(source, LaunchWords())
    assert not draft.missing
    assert draft.kernel().launches[0].grid[0].evaluate({"n": 4096, "block_x": 128}) == 32
    assert any("from the launch in program.cu" in text for text in draft.assumed)
    stated = draft_spec(source, LaunchWords(arguments=["n=1024"], block="64"))
    assert "n = 1024" in stated.text
    assert 'block = ["64"]' in stated.text


def test_unknown_template_instance_is_named(tmp_path, refuses):
    (source := tmp_path / "t.cu").write_text("template <class T, int N> __global__ void f(T *x) { x[0] = N; }\n")
    refuses(lambda: draft_spec(source, LaunchWords(entry="f<float>", grid="1", block="32")))
    refuses(lambda: draft_spec(source, LaunchWords()))


def test_launch_arguments_with_casts_and_offsets_are_evaluated():
    text = """__global__ void f(float *x, float *y, int n) {}
int main() { const size_t size = 1 << 12; float *x, *y; cudaMalloc(&x, 4 * size); cudaMalloc(&y, 4 * size);
f<<<static_cast<unsigned int>(size) / 256, 256>>>(reinterpret_cast<float *>(x), y + 8, int(size)); }"""
    (launch,) = host_launches(text, "f", [("x", "f32"), ("y", "f32"), ("n", None)])
    assert (launch.grid, launch.arguments) == ("16", ("x=[4096]", "y=[4096]", "n=4096"))


def test_parameter_enabled_by_a_defined_macro_is_in_the_draft(tmp_path):
    (path := tmp_path / "f.cu").write_text("__global__ void f(int *x\n#ifdef EXTRA\n, int m\n#endif\n) { *x = 1; }")
    words = LaunchWords(grid="1", block="32", arguments=["x=[4]", "m=3"], defines={"EXTRA": "1"})
    assert not draft_spec(path, words).missing


def test_dim3_grid_that_looks_like_a_function_declaration_is_evaluated():
    text = """int up(int a, int b) { return (a + b - 1) / b; } __global__ void f(float *x, int n) {}
void launch(float *x, int n) { const int A = 16, B = 4; dim3 grid(up(n, A * B), up(n, B * A)); f<<<grid, 64>>>(x, n); }
"""
    (launch,) = host_launches(text, "f", [("x", "f32"), ("n", None)])
    assert launch.grid == "((n + 64) - 1)/64, ((n + 64) - 1)/64"


def test_files_that_include_each_other_are_refused_in_one_line(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.cu").write_text(
            f'#include "{other}.cu"\n__global__ void {name}(float *x) {{ *x = missing_{name}(); }}'
        )
    with pytest.raises(UsageError, match=r"is undefined; b\.cu includes this file"):
        draft_spec(tmp_path / "a.cu", LaunchWords("a"), assume=True)


CONDITIONAL = """
#ifdef SMALL
# define N 64
#else
# define N 256
#endif
#ifndef SHIFT
# define SHIFT 1
#endif
__global__ void f(float *x) { x[threadIdx.x] = 1; }
int main() {
    float *x;
    cudaMalloc(&x, (N << SHIFT) * sizeof(float));
    f<<<1, N>>>(x);
}
"""


@pytest.mark.parametrize(
    ("options", "block", "arguments"),
    [("", None, ()), ("N 128", (128,), ("x=[256]",)), ("N 64\n#define SHIFT 2", (64,), ("x=[256]",))],
)
def test_macro_with_several_definitions_needs_an_option(options, block, arguments):
    text = CONDITIONAL + (f"#define {options}\n" if options else "")
    (launch,) = host_launches(text, "f", [("x", "f32")])
    assert (launch.block, launch.arguments) == (block, arguments)


def test_macros_of_deeply_nested_code_are_read():
    text = CONDITIONAL + f"int sum() {{ return {'+'.join(['1'] * 3000)}; }}\n#define N 256\n"
    (launch,) = host_launches(text, "f", [("x", "f32")])
    assert launch.block == (256,)


def test_launch_and_macro_in_if_0_are_ignored():
    text = CONDITIONAL.replace("    f<<<", "#if 0\n    f<<<2, 32>>>(x);\n#else\n    f<<<", 1).replace(
        "(x);\n}", "(x);\n#endif\n}"
    )
    (launch,) = host_launches(f"{text}#define N 128\n#if 0\n# define N 512\n#endif\n", "f", [("x", "f32")])
    assert (launch.grid, launch.block) == ("1", (128,))


INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y; x[j * n + i] = 1;"

LOOP = "for (int i = threadIdx.x; i < n; i += blockDim.x) x[blockIdx.x * n + i] = 1;"


@pytest.mark.parametrize(
    ("body", "launch", "blocks"),
    [
        (INDEX, "4096, 256", [(256,), (64,), (128,), (512,)]),
        (INDEX, "N / 256, 256", [(256,), (64,), (128,), (512,)]),
        (INDEX, "n / 256, 256", [(256,), (64,), (128,)]),
        (INDEX, "dim3(4, 24), dim3(16, 16)", [(16, 16), (32, 4), (32, 8), (32, 16), (64, 4)]),
        ("x[blockIdx.x * 256 + threadIdx.x] = blockDim.x;", "4, 256", [(256,)]),
        (f"{INDEX} x[i / blockDim.x] = 1;", "4096, 256", [(256,)]),
        ("x[id()] = blockIdx.x * blockDim.x;", "4096, 256", [(256,)]),
        (LOOP, "4, 64", [(64,), (128,), (256,), (512,)]),
    ],
)
def test_every_tried_block_size_does_the_work_of_the_host_launch(tmp_path, body, launch, blocks):
    (path := tmp_path / "f.cu").write_text(
        "#define N (1 << 20)\n#define ID blockIdx.x\n__device__ int id() { return ID; }\n"
        f"__global__ void f(float *x, int n) {{ {body} }}\n"
        f"int main() {{ int n = N; float *x; cudaMalloc(&x, 4 * n); f<<<{launch}>>>(x, n); }}"
    )
    kernel = draft_spec(path, LaunchWords()).kernel()
    problem = kernel.definition.problem()
    space = Space.of(kernel, problem, find_gpu("a100"))
    launches = [bind_launches(kernel, space.config(row), problem, 80)[0] for row in range(len(space))]
    assert {each.block for each in launches} == {(*block, 1, 1)[:3] for block in blocks}
    assert body == LOOP or len({tuple(map(mul, each.grid, each.block)) for each in launches}) == 1
    rounded = draft_spec(path, LaunchWords(block="96")).kernel().launches[0].grid[0].evaluate({"n": 1 << 20})
    assert body != INDEX or rounded * 96 >= launches[0].grid[0] * launches[0].block[0]
