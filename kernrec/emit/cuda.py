"""Write a recommended config as CUDA C++ that compiles unchanged. A comment at the top describes the launch."""

from collections.abc import Sequence

from kernrec.compile.compiled import target_name
from kernrec.emit.files import Files
from kernrec.kernel import Config, Kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, workspaces
from kernrec.kernel.spec import BytesArgument
from kernrec.kernel.tensor_map import ImageHandle, MapHandle
from kernrec.op import Problem
from kernrec.recommender.result import Answer, Recommendation


def emit(answers: Sequence[Answer]) -> Files:
    """Return the CUDA C++ of the best config."""
    best = answers[0].best
    return {f"{best.kernel.name}.cu": cuda_source(best).encode()}


def cuda_source(recommendation: Recommendation) -> str:
    """Return the kernel's source, with the config's defines and a description of the launch at the top."""
    problem, kernel = recommendation.problem, recommendation.kernel
    source = variant_source(kernel, recommendation.config, problem)
    return "\n".join(launch_comment(recommendation)) + "\n" + source


def launch_comment(recommendation: Recommendation, launches: Sequence[BoundLaunch] | None = None) -> list[str]:
    """Return comment lines that describe the config, its tensors and its launch for the problem.

    Args:
        launches: Launches with the shared memory of compiled code. The default is the config's launches.
    """
    problem, kernel = recommendation.problem, recommendation.kernel
    lines = [
        f"// {kernel.name} for {problem.key} on {recommendation.gpu.title}, recommended by kernrec.",
        f"// Expected {recommendation.latency_s.value * 1e6:.4g} us, {recommendation.energy_j.value * 1e3:.4g} mJ"
        f" (sources: {recommendation.latency_s.source}, {recommendation.energy_j.source}).",
        f"// Compile for {target_name(kernel.source, recommendation.gpu.sm)}. Tensors are dense, last axis fastest:",
    ]
    lines += [
        f"//   {name}: {' x '.join(map(str, tensor.shape))} {tensor.dtype} ({tensor.role})"
        for name, tensor in problem.tensors.items()
    ]
    for scratch in workspaces(kernel, recommendation.config, problem, recommendation.gpu.sm):
        lines.append(f"//   {scratch.name}: {scratch.elements} {scratch.dtype} (workspace, no initial value needed)")
    for launch in recommendation.launches if launches is None else launches:
        arguments = ", ".join(map(_argument, launch.arguments))
        if launch.shared_bytes > 48 * 1024:
            lines.append(
                f"//   cudaFuncSetAttribute({launch.entry}, cudaFuncAttributeMaxDynamicSharedMemorySize,"
                f" {launch.shared_bytes});"
            )
        grid, block = (", ".join(map(str, size)) for size in (launch.grid, launch.block))
        lines.append(
            f"//   {launch.entry}<<<dim3({grid}), dim3({block}), {launch.shared_bytes}, stream>>>({arguments});"
        )
    launched = [f"{t.name} = {recommendation.config[t.name]}" for t in kernel.tunables if t.launch]
    if launched:
        lines.append(f"// Chosen at launch, inside grid and arguments: {', '.join(launched)}.")
    return lines


def _argument(argument: Pointer | Scalar | BytesArgument | ImageHandle | MapHandle) -> str:
    """Return an argument as text for the launch comment."""
    if isinstance(argument, MapHandle):
        box = " x ".join(map(str, argument.box))
        return f"map of {argument.name} (box {box}, swizzle {argument.swizzle} B)"
    if isinstance(argument, Scalar):
        return str(argument.value)
    if isinstance(argument, BytesArgument):
        return f"bytes {argument.raw.hex()}"
    if isinstance(argument, Pointer) and argument.offset:
        return f"(char*) {argument.name} + {argument.offset}"
    return "nullptr" if isinstance(argument, Pointer) and argument.null else argument.name


def variant_source(kernel: Kernel, config: Config, problem: Problem) -> str:
    """Return the source of one compiled variant, with its tunables, dtype and layout defined at the top."""
    form = kernel.form(problem)
    defines = kernel.defines(config, form.dtype, form.layout)
    return "".join(f"#define {name} {value}\n" for name, value in defines.items()) + "\n" + kernel.source
