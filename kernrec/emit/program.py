"""C++ around kernels: functions that launch them on one shape, and the cases that a program fills, checks and times.

A kernel in CUDA is part of the program's source; of one in Triton the program holds the machine code. The folder
`harness` has the parts that are the same in every program.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.emit.cuda import variant_source
from kernrec.emit.machine_code import compiled_choice, launches_of
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, workspaces
from kernrec.kernel.tensor_map import ELEMENT_TYPES, SWIZZLES, MapHandle
from kernrec.measure.device.correctness import tolerance
from kernrec.op import all_ops
from kernrec.recommender.result import Choice, Recommendation

if TYPE_CHECKING:
    from kernrec.compile import Compiled

_HARNESS = Path(__file__).with_name("harness")
_C_NAMES = {
    "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t", "u32": "uint32_t",
    "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double",
}  # fmt: skip
_SAMPLES = 2000
"""Elements of an output that are checked at most."""
_WORK = 1e8
"""Floating-point operations that the check of a case takes on the CPU, about."""
_ALIGNMENT = 256

HOST_ONLY = "#ifndef __CUDACC_RTC__  // the runtime compiler takes the kernels alone"


def harness(name: str) -> str:
    """A file of the harness."""
    return (_HARNESS / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Program:
    """A choice as a part of a program."""

    choice: Choice
    compiled: "Compiled | None"
    """The code of a kernel in Triton; None for one in CUDA, whose source is in the program."""

    @property
    def launches(self) -> Sequence[BoundLaunch]:
        """The launches, with the shared memory that they ask for."""
        return self.choice.launches if self.compiled is None else launches_of(self.choice, self.compiled)


def program_of(answer: Recommendation, form: str) -> Program:
    """The best choice as a part of a program.

    Raises:
        KernrecError: its problem has no reference to check against, or its code cannot be made.
    """
    choice = answer.best
    if choice.kernel.declares_problem or choice.problem.op not in {op.name for op in all_ops()}:
        raise KernrecError(
            f"--emit {form} checks against the reference of an op, and {choice.kernel.name} has a problem of its own:"
            " --emit cuda"
        )
    return Program(choice, None if choice.kernel.triton is None else compiled_choice(choice))


def kernel_source(program: Program, names: Mapping[str, str]) -> str:
    """The kernels of a choice, for a program to launch: their source, or machine code.

    `names`: of each kernel in the program, so that several variants link into one.
    """
    choice = program.choice
    if program.compiled is not None:
        return _loaded(program.compiled, names)
    defines = "".join(f"#define {old} {new}\n" for old, new in names.items() if old != new)
    return defines + variant_source(choice.kernel, choice.config, choice.problem)


def _loaded(compiled: "Compiled", names: Mapping[str, str]) -> str:
    """Machine code as words of 64 bits, and a function for each kernel that loads it once."""
    code = compiled.cubin + bytes(-len(compiled.cubin) % 8)
    words = [f"0x{int.from_bytes(code[place : place + 8], 'little'):x}u" for place in range(0, len(code), 8)]
    ((entry, name),) = names.items()
    return "\n".join(
        [
            f"// Machine code of {entry}, by {compiled.compiler}.",
            f"static const unsigned long long {name}_code[] = {{",
            *(f"    {', '.join(words[row : row + 6])}," for row in range(0, len(words), 6)),
            "};",
            f"static const kernrec::LoadedKernel& {name}() {{",
            f'    static const kernrec::LoadedKernel loaded({name}_code, "{entry}");',
            "    return loaded;",
            "}\n",
        ]
    )


def workspace_bytes(choice: Choice) -> int:
    """Memory for the workspaces of a choice, in bytes."""
    return sum(
        _padded(space.bytes) for space in workspaces(choice.kernel, choice.config, choice.problem, choice.gpu.sm)
    )


def launcher(program: Program, function: str, names: Mapping[str, str]) -> str:
    """A C++ function that queues a choice's launches.

    Args:
        program: the config on its problem.
        function: how the function is declared but for its parameters, such as `static cudaError_t launch`.
        names: of each kernel in the program.
    """
    choice = program.choice
    lines = [f"{function}(void* const* tensors, void* workspace, cudaStream_t stream) {{"]
    places, offset = {}, 0
    for number, name in enumerate(choice.problem.tensors):
        places[name] = f"tensors[{number}]"
    for space in workspaces(choice.kernel, choice.config, choice.problem, choice.gpu.sm):
        places[space.name] = f"static_cast<char*>(workspace) + {offset}"
        offset += _padded(space.bytes)
    if not offset:
        lines.append("    (void)workspace;")
    for launch in program.launches:
        name = names[launch.entry]
        address = f"reinterpret_cast<const void*>({name})"
        if program.compiled is not None:
            lines.append(f"    if ({name}().error != cudaSuccess) return {name}().error;")
            address = f"{name}().address"
        lines += [f"    {line}" for line in _launch(launch, address, places)]
    return "\n".join([*lines, "    return cudaSuccess;", "}"]) + "\n"


def _launch(launch: BoundLaunch, address: str, places: Mapping[str, str]) -> list[str]:
    """One launch of the kernel at `address` as a block of C++."""
    lines = ["{"]
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, Scalar):
            suffix = "u" if argument.ctype[0] == "u" else ""
            lines.append(f"    {_C_NAMES[argument.ctype]} p{number} = {argument.value}{suffix};")
        elif isinstance(argument, MapHandle):
            lines += [f"    {line}" for line in _map(argument, f"p{number}", places[argument.name])]
        elif isinstance(argument, Pointer):
            lines.append(f"    void* p{number} = {'nullptr' if argument.null else places[argument.name]};")
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
    """A tensor map as lines of C++."""
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


def map_encoder(programs: "Iterable[Program]") -> str:
    """C++ that launchers of programs call."""
    maps = any(
        isinstance(a, MapHandle) for program in programs for launch in program.launches for a in launch.arguments
    )
    return _ENCODE if maps else ""


def case(choice: Choice, function: str) -> str:
    """The initializer of a `kernrec::Case`; `function` launches it."""
    problem = choice.problem
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
        f'"{choice.kernel.name} for {problem.key}"',
        f"{{{dims}}}",
        f'"{problem.layout}"',
        "{" + ",\n      ".join(tensors) + "}",
        str(workspace_bytes(choice)),
        function,
        f"kernrec::{problem.op}",
        str(samples),
        repr(tolerance(problem)),
        repr(choice.latency_s.value),
    ]
    return "    {" + ",\n     ".join(parts) + "}"


def main_function(cases: "list[str]") -> str:
    """`main` over cases."""
    listed = ",\n".join(cases)
    return (
        "int main(int count, char** arguments) {\n"
        f"    const std::vector<kernrec::Case> cases = {{\n{listed}}};\n"
        "    return kernrec::main_of(cases, count, arguments);\n}\n"
    )


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
