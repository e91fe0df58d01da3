"""Write a CMake project: kernels, a C++ launch function per problem, and a program that checks the results."""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path

from kernrec.compile.compiled import target_name
from kernrec.emit.formats import Files
from kernrec.emit.sources import launch_comment, variant_source
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, Scratch, workspaces
from kernrec.kernel.spec import BytesArgument
from kernrec.kernel.tensor_map import ELEMENT_TYPES, SWIZZLES, MapHandle
from kernrec.measure.device.correctness import tolerance
from kernrec.op import Problem, all_ops
from kernrec.recommender.result import Answer, Recommendation

_HARNESS = Path(__file__).with_name("harness")
_C_NAMES = {
    "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t", "u32": "uint32_t",
    "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double",
}  # fmt: skip
_SAMPLES = 2000
"""Maximum number of output elements to check."""
_WORK = 1e8
"""Maximum number of floating-point operations on the CPU to check one case."""
_ALIGNMENT = 256
HOST_ONLY = "#ifndef __CUDACC_RTC__  // the runtime compiler takes only the kernels"
_PARAMETERS = "(void* const* tensors, void* workspace, cudaStream_t stream)"


def emit_project(answers: Sequence[Answer]) -> Files:
    """Return the files of a CMake project that runs the best config of each answer.

    Raise `KernrecError` if an op is not one of kernrec's, because the project could not check its results.
    """
    recommendations: dict[Problem, Recommendation] = {}
    for answer in answers:
        recommendation = answer.best
        if recommendation.kernel.declares_problem or recommendation.problem.op not in {op.name for op in all_ops()}:
            raise KernrecError(
                f"--output with a folder needs a kernel of an op, and {recommendation.kernel.name} declares its own"
                f" problem: name a file, such as --output {recommendation.kernel.name}.cu"
            )
        recommendations.setdefault(answer.problem, recommendation)
    by_code: dict[tuple[object, ...], list[Problem]] = {}
    for problem, recommendation in recommendations.items():
        kernel, form = recommendation.kernel, recommendation.kernel.form(problem)
        key = kernel.variant_key(recommendation.config, form.dtype, form.layout)
        by_code.setdefault((kernel.name, key), []).append(problem)
    variants = list(by_code.values())
    files = {
        **{name: (_HARNESS / name).read_text(encoding="utf-8") for name in ("harness.h", "references.h")},
        "kernrec_kernels.h": _header(recommendations),
        "check.cu": _check(recommendations),
    }
    for number, problems in enumerate(variants):
        files[f"variant_{number}.cu"] = _variant([recommendations[problem] for problem in problems], number)
    targets = {
        target_name(recommendation.kernel.source, recommendation.gpu.sm) for recommendation in recommendations.values()
    }
    files["CMakeLists.txt"] = _cmake_lists(max(targets, key=len).removeprefix("sm_"), len(variants))
    return {name: text.encode() for name, text in sorted(files.items())}


def function_name(problem: Problem) -> str:
    """Return the name of the C++ function that computes a problem, such as `softmax_f16_row_rows64_columns512`."""
    sizes = "_".join(f"{name}{size}" for name, size in problem.dims)
    return f"{problem.op}_{problem.dtype}_{problem.layout}_{sizes}"


def _variant(recommendations: Sequence[Recommendation], number: int) -> str:
    first = recommendations[0]
    # Rename the kernels, so that several variants can be linked into one program.
    names = {launch.entry: f"{launch.entry}_{number}" for launch in first.kernel.launches}
    renamed = "".join(f"#define {old} {new}\n" for old, new in names.items())
    source = variant_source(first.kernel, first.config, first.problem)
    parts = [HOST_ONLY, "#include <cuda_runtime.h>", "#include <cstdint>", "#endif", renamed + source, HOST_ONLY]
    launches = [launch for recommendation in recommendations for launch in recommendation.launches]
    if any(isinstance(argument, MapHandle) for launch in launches for argument in launch.arguments):
        parts.append(_ENCODE)
    for recommendation in recommendations:
        parts += ["\n".join(launch_comment(recommendation)), _launcher(recommendation, names)]
    return "\n".join([*parts, "#endif"]) + "\n"


def _header(recommendations: Mapping[Problem, Recommendation]) -> str:
    gpu = next(iter(recommendations.values())).gpu
    declared = "".join(
        f"""
// {problem.key}; tensors: {", ".join(problem.tensors)}
cudaError_t {function_name(problem)}{_PARAMETERS};
static const size_t {function_name(problem)}_workspace = {workspace_bytes(recommendation)};
"""
        for problem, recommendation in recommendations.items()
    )
    return f"""// Kernels for {gpu.title}, recommended by kernrec. Each function queues the launches for one shape in a
// stream. `tensors` are device addresses in the order given above the function. They are dense and multiples
// of 16. `workspace` has as many bytes as the constant below the function. Calls in several streams need
// workspaces of their own.
#pragma once
#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {{
#endif
{declared}
#ifdef __cplusplus
}}
#endif
"""


def _check(recommendations: Mapping[Problem, Recommendation]) -> str:
    listed = ",\n".join(map(_case, recommendations.values()))
    return f"""// Checks and times every shape.
#include "kernrec_kernels.h"
#include "references.h"

int main(int count, char** arguments) {{
    const std::vector<kernrec::Case> cases = {{
{listed}}};
    return kernrec::main_of(cases, count, arguments);
}}
"""


def _cmake_lists(target: str, variants: int) -> str:
    sources = " ".join(f"variant_{number}.cu" for number in range(variants))
    return f"""# cmake -S . -B build && cmake --build build && ctest --test-dir build
cmake_minimum_required(VERSION 3.20)
project(kernrec_kernels LANGUAGES CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(KERNREC_ARCHITECTURES {target} CACHE STRING "Compute capabilities to compile for")

add_library(kernrec_kernels STATIC {sources})
add_executable(check check.cu)
set_target_properties(kernrec_kernels check PROPERTIES CUDA_ARCHITECTURES "${{KERNREC_ARCHITECTURES}}")
target_include_directories(kernrec_kernels PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries(check PRIVATE kernrec_kernels)
enable_testing()
add_test(NAME check COMMAND check)
"""


def workspace_bytes(recommendation: Recommendation) -> int:
    """Return the total size of a config's workspaces, in bytes."""
    return sum(_padded(space.bytes) for space in _workspaces(recommendation))


def _workspaces(recommendation: Recommendation) -> Sequence[Scratch]:
    kernel, gpu = recommendation.kernel, recommendation.gpu
    return workspaces(kernel, recommendation.config, recommendation.problem, gpu.sm)


def _launcher(recommendation: Recommendation, names: Mapping[str, str]) -> str:
    """Return the C++ function that queues a config's launches. `names` maps kernels in the source to names in the
    project.
    """
    lines = [f'extern "C" cudaError_t {function_name(recommendation.problem)}{_PARAMETERS} {{']
    places = {name: f"tensors[{number}]" for number, name in enumerate(recommendation.problem.tensors)}
    offset = 0
    for space in _workspaces(recommendation):
        places[space.name] = f"static_cast<char*>(workspace) + {offset}"
        offset += _padded(space.bytes)
    if not offset:
        lines.append("    (void)workspace;")
    for launch in recommendation.launches:
        address = f"reinterpret_cast<const void*>({names[launch.entry]})"
        lines += [f"    {line}" for line in _launch(launch, address, places)]
    return "\n".join([*lines, "    return cudaSuccess;", "}"]) + "\n"


def _launch(launch: BoundLaunch, address: str, places: Mapping[str, str]) -> list[str]:
    """Return C++ code for a launch, given C++ expressions for the kernel's address and for each tensor's address."""
    lines = ["{"]
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, Scalar):
            suffix = "u" if argument.ctype[0] == "u" else ""
            lines.append(f"    {_C_NAMES[argument.ctype]} p{number} = {argument.value}{suffix};")
        elif isinstance(argument, MapHandle):
            lines += [f"    {line}" for line in _map(argument, f"p{number}", places[argument.name])]
        elif isinstance(argument, Pointer):
            place = "nullptr" if argument.null else places[argument.name]
            lines.append(
                f"    void* p{number} = {f'(char*) {place} + {argument.offset}' if argument.offset else place};"
            )
        elif isinstance(argument, BytesArgument):
            numbers = ", ".join(map(str, argument.raw))
            lines.append(f"    alignas(16) unsigned char p{number}[] = {{{numbers}}};")
            for offset, name in argument.pointers:
                lines.append(f"    *(void**) (p{number} + {offset}) = {places[name]};")
        else:
            raise KernrecError(f"{launch.entry} takes a texture ({argument.name}), for which no program is written")
    lines.append(f"    void* arguments[] = {{{', '.join(f'&p{i}' for i in range(len(launch.arguments)))}}};")
    if launch.shared_bytes > 48 * 1024:
        lines += [
            f"    const cudaError_t raised = cudaFuncSetAttribute({address},",
            f"        cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.shared_bytes});",
            "    if (raised != cudaSuccess) return raised;",
        ]
    grid, block = (", ".join(map(str, size)) for size in (launch.grid, launch.block))
    lines += [
        f"    const cudaError_t queued = cudaLaunchKernel({address}, dim3({grid}), dim3({block}),",
        f"        arguments, {launch.shared_bytes}, stream);",
        "    if (queued != cudaSuccess) return queued;",
        "}",
    ]
    return lines


def _map(handle: MapHandle, variable: str, place: str) -> list[str]:
    extents, strides, box = (", ".join(map(str, numbers)) for numbers in (handle.extents, handle.strides, handle.box))
    rank, kind = len(handle.extents), ELEMENT_TYPES[handle.dtype]
    return [
        f"CUtensorMap {variable};",
        f"const cuuint64_t {variable}_extents[] = {{{extents}}}, {variable}_strides[] = {{{strides}}};",
        f"const cuuint32_t {variable}_box[] = {{{box}}}, {variable}_steps[] = {{{', '.join('1' * rank)}}};",
        f"const cudaError_t {variable}_made = kernrec_encode(",
        f"    &{variable}, static_cast<CUtensorMapDataType>({kind}), {rank}, {place},",
        f"    {variable}_extents, {variable}_strides, {variable}_box, {variable}_steps,",
        f"    static_cast<CUtensorMapSwizzle>({SWIZZLES[handle.swizzle]}));",
        f"if ({variable}_made != cudaSuccess) return {variable}_made;",
    ]


_ENCODE = """#include <cuda.h>

// Encodes a tensor map by the driver, which is found without linking to it.
static cudaError_t kernrec_encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                  const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                  const cuuint32_t* steps, CUtensorMapSwizzle swizzle) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult query;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &query);
    if (status != cudaSuccess || query != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    const CUresult made = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
        map, type, rank, address, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
"""


def _case(recommendation: Recommendation) -> str:
    problem = recommendation.problem
    values = problem.definition.values(problem.sizes)
    tensors = []
    for tensor in problem.tensors.values():
        mean, deviation = values.get(tensor.name, (0, 1))
        output = str(tensor.role == "output").lower()
        tensors.append(f'{{"{tensor.name}", "{tensor.dtype}", {tensor.elements}, {mean!r}, {deviation!r}, {output}}}')
    dims = ", ".join(f'{{"{name}", {size}}}' for name, size in problem.sizes.items())
    elements = problem.tensors[problem.definition.outputs[0]].elements
    work = max(problem.flops / elements, sqrt(problem.bytes), 1.0)
    samples = min(elements, _SAMPLES, max(32, int(_WORK / work)))
    parts = [
        f'"{recommendation.kernel.name} for {problem.key}"',
        f"{{{dims}}}",
        f'"{problem.layout}"',
        "{" + ",\n      ".join(tensors) + "}",
        str(workspace_bytes(recommendation)),
        function_name(problem),
        f"kernrec::{problem.op}",
        str(samples),
        repr(tolerance(problem)),
        repr(recommendation.latency_s.value),
    ]
    return "    {" + ",\n     ".join(parts) + "}"


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
