"""A folder that builds with CMake: the configs of one or several problems, a header with a dispatch function over
shapes for each op, and a program that checks and times all of them."""

from collections.abc import Mapping, Sequence

from kernrec.compile.compiled import target_name
from kernrec.emit.cuda import launch_comment
from kernrec.emit.files import Files
from kernrec.emit.program import (
    HOST_ONLY,
    Program,
    case,
    harness,
    kernel_source,
    launcher,
    main_function,
    map_encoder,
    program_of,
    workspace_bytes,
)
from kernrec.op import Problem
from kernrec.recommender.result import Choice, Recommendation

_LAUNCHED = "(void* const* tensors, void* workspace, cudaStream_t stream)"

Group = tuple[str, str, str]
"""Op, dtype and layout of problems that one function dispatches over."""


def emit(answers: Sequence[Recommendation]) -> Files:
    """The folder; of answers for equal problems the first counts."""
    programs: dict[Problem, Program] = {}
    for answer in answers:
        if answer.problem not in programs:
            programs[answer.problem] = program_of(answer, "cmake")
    ordered = {problem: program.choice for problem, program in programs.items()}
    launchers = {problem: f"kernrec_launch_{number}" for number, problem in enumerate(ordered)}
    groups: dict[Group, list[Problem]] = {}
    for problem in ordered:
        groups.setdefault((problem.op, problem.dtype, problem.layout), []).append(problem)
    files = {
        "harness.h": harness("harness.h"),
        "references.h": harness("references.h"),
        "kernrec_kernels.h": _header(ordered, groups),
        "dispatch.cu": _dispatch(ordered, groups, launchers),
        "check.cu": _check(ordered, launchers),
    }
    if any(program.compiled is not None for program in programs.values()):
        files["loaded_kernel.h"] = harness("loaded_kernel.h")
    variants = _variants(ordered)
    targets = {target_name(choice.kernel.source, choice.gpu.sm) for choice in ordered.values()}
    for number, problems in enumerate(variants.values()):
        files[f"variant_{number}.cu"] = _variant(programs, problems, launchers, number)
    files["CMakeLists.txt"] = _cmake_lists(max(targets, key=len).removeprefix("sm_"), len(variants))
    return {name: text.encode() for name, text in sorted(files.items())}


def _variants(choices: Mapping[Problem, Choice]) -> dict[tuple[object, ...], list[Problem]]:
    """The problems of each compiled code."""
    variants: dict[tuple[object, ...], list[Problem]] = {}
    for problem, choice in choices.items():
        form = choice.kernel.form(problem)
        key = choice.kernel.variant_key(choice.config, form.dtype, form.layout)
        variants.setdefault((choice.kernel.name, key), []).append(problem)
    return variants


def _variant(
    programs: Mapping[Problem, Program], problems: Sequence[Problem], launchers: Mapping[Problem, str], number: int
) -> str:
    """One compiled code, with a function for each problem that it runs."""
    first = programs[problems[0]]
    names = {launch.entry: f"{launch.entry}_{number}" for launch in first.choice.kernel.launches}
    included = ["<cuda_runtime.h>", "<cstdint>", *(['"loaded_kernel.h"'] if first.compiled is not None else [])]
    parts = [HOST_ONLY, *(f"#include {name}" for name in included), "#endif", kernel_source(first, names)]
    parts += [HOST_ONLY, map_encoder(programs[problem] for problem in problems)]
    for problem in problems:
        program = programs[problem]
        parts.append("\n".join(launch_comment(program.choice, program.launches)))
        parts.append(launcher(program, f'extern "C" cudaError_t {launchers[problem]}', names))
    return "\n".join([*parts, "#endif"]) + "\n"


def _function(group: Group) -> str:
    return "kernrec_" + "_".join(group)


def _parameters(problem: Problem) -> str:
    return ", ".join(f"long {dim.name}" for dim in problem.definition.dims)


def _header(choices: Mapping[Problem, Choice], groups: Mapping[Group, Sequence[Problem]]) -> str:
    gpu = next(iter(choices.values())).gpu
    lines = [
        f"// Kernels for {gpu.title}, recommended by kernrec. A function for each op, data type and layout queues the",
        "// config for a shape in a stream; for a shape that is not listed it queues nothing and returns",
        "// cudaErrorInvalidValue. `tensors` are addresses on the device in the order that stands above each function,",
        "// dense and multiples of 16; `workspace` has as many bytes as the function ..._workspace says (-1: the shape",
        "// is not listed), and may be null where that is 0. Calls in several streams need workspaces of their own.",
        "#pragma once",
        "#include <cuda_runtime.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
    ]
    for group, problems in groups.items():
        parameters = _parameters(problems[0])
        lines += [
            "",
            f"// {' '.join(group)}; tensors: {', '.join(problems[0].tensors)}. Shapes:",
            *(f"//   {', '.join(f'{name}={size}' for name, size in problem.dims)}" for problem in problems),
            f"cudaError_t {_function(group)}({parameters}, void* const* tensors, void* workspace,",
            "    cudaStream_t stream);",
            f"long {_function(group)}_workspace({parameters});",
        ]
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif"]) + "\n"


def _dispatch(
    choices: Mapping[Problem, Choice], groups: Mapping[Group, Sequence[Problem]], launchers: Mapping[Problem, str]
) -> str:
    lines = ['#include "kernrec_kernels.h"', "", "#include <algorithm>", "", 'extern "C" {']
    lines += [f"cudaError_t {name}{_LAUNCHED};" for name in launchers.values()]
    lines += ["}", "", f"using Launch = cudaError_t (*){_LAUNCHED};", ""]
    for group, problems in groups.items():
        function, parameters = _function(group), _parameters(problems[0])
        names = [dim.name for dim in problems[0].definition.dims]
        rows = ",\n".join(
            f"    {{{{{', '.join(str(problem.sizes[name]) for name in names)}}}, {workspace_bytes(choices[problem])},"
            f" {launchers[problem]}}}"
            for problem in problems
        )
        lines += [
            f"namespace {function}_shapes {{",
            f"struct Row {{ long dims[{len(names)}]; long workspace; Launch launch; }};",
            f"const Row listed[] = {{\n{rows}}};",
            f"const Row* find({parameters}) {{",
            f"    const long given[] = {{{', '.join(names)}}};",
            "    for (const Row& known : listed)",
            f"        if (std::equal(given, given + {len(names)}, known.dims)) return &known;",
            "    return nullptr;",
            "}",
            f"}}  // namespace {function}_shapes",
            "",
            f'extern "C" cudaError_t {function}({parameters}, void* const* tensors, void* workspace,',
            "    cudaStream_t stream) {",
            f"    const auto* known = {function}_shapes::find({', '.join(names)});",
            "    return known ? known->launch(tensors, workspace, stream) : cudaErrorInvalidValue;",
            "}",
            "",
            f'extern "C" long {function}_workspace({parameters}) {{',
            f"    const auto* known = {function}_shapes::find({', '.join(names)});",
            "    return known ? known->workspace : -1;",
            "}",
            "",
        ]
    return "\n".join(lines)


def _check(choices: Mapping[Problem, Choice], launchers: Mapping[Problem, str]) -> str:
    lines = ["// Checks and times every shape, through the dispatch functions.", '#include "kernrec_kernels.h"']
    lines += ['#include "references.h"', ""]
    for problem, name in launchers.items():
        function = _function((problem.op, problem.dtype, problem.layout))
        sizes = ", ".join(str(problem.sizes[dim.name]) for dim in problem.definition.dims)
        lines += [
            f"static cudaError_t {name}{_LAUNCHED} {{",
            f"    return {function}({sizes}, tensors, workspace, stream);",
            "}",
        ]
    return "\n".join([*lines, "", main_function([case(choices[p], name) for p, name in launchers.items()])])


def _cmake_lists(target: str, variants: int) -> str:
    sources = " ".join(f"variant_{number}.cu" for number in range(variants))
    return f"""# cmake -S . -B build && cmake --build build && ctest --test-dir build
cmake_minimum_required(VERSION 3.20)
project(kernrec_kernels LANGUAGES CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(KERNREC_ARCHITECTURES {target} CACHE STRING "Compute capabilities to compile for")

add_library(kernrec_kernels STATIC dispatch.cu {sources})
add_executable(check check.cu)
set_target_properties(kernrec_kernels check PROPERTIES CUDA_ARCHITECTURES "${{KERNREC_ARCHITECTURES}}")
target_include_directories(kernrec_kernels PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries(check PRIVATE kernrec_kernels)
enable_testing()
add_test(NAME check COMMAND check)
"""
