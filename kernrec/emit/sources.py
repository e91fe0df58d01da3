"""Write a recommended config as source code: CUDA C++ or Triton that runs unchanged, or the compiler's PTX."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kernrec.compile.compiled import target_name
from kernrec.emit.formats import Files
from kernrec.kernel import Config, Kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, workspaces
from kernrec.kernel.spec import BytesArgument
from kernrec.kernel.tensor_map import ImageHandle, MapHandle
from kernrec.kernel.triton_function import OPTIONS
from kernrec.op import Problem
from kernrec.recommender.result import Answer, Recommendation


def emit_cuda(answers: Sequence[Answer]) -> Files:
    """Return a file with the CUDA C++ source of the first answer's best config."""
    best = answers[0].best
    source = variant_source(best.kernel, best.config, best.problem)
    return {f"{best.kernel.name}.cu": "\n".join([*launch_comment(best), source]).encode()}


def launch_comment(recommendation: Recommendation, launches: Sequence[BoundLaunch] | None = None) -> list[str]:
    """Return comment lines that describe a config, its tensors and its launches."""
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
    if isinstance(argument, MapHandle):
        box = " x ".join(map(str, argument.box))
        return f"map of {argument.name} (box {box}, swizzle {argument.swizzle} B)"
    if isinstance(argument, Scalar):
        return str(argument.value)
    if isinstance(argument, BytesArgument):
        return " ".join([f"bytes {argument.raw.hex()}", *(f"{name}@{offset}" for offset, name in argument.pointers)])
    if isinstance(argument, Pointer) and argument.offset:
        return f"(char*) {argument.name} + {argument.offset}"
    return "nullptr" if isinstance(argument, Pointer) and argument.null else argument.name


def variant_source(kernel: Kernel, config: Config, problem: Problem) -> str:
    """Return the source of a kernel with definitions of the config, the data type and the layout at the top."""
    form = kernel.form(problem)
    defines = kernel.defines(config, form.dtype, form.layout)
    return "".join(f"#define {name} {value}\n" for name, value in defines.items()) + "\n" + kernel.source


def emit_triton(answers: Sequence[Answer]) -> Files:
    """Return a file with the Triton source of the first answer's best config.

    The file also defines a dictionary `CONFIG` and, if possible, a function `launch`.
    """
    recommendation = answers[0].best
    kernel, form = recommendation.kernel, recommendation.kernel.form(recommendation.problem)
    words = {*re.findall(r"[A-Za-z_]\w*", kernel.source), *OPTIONS}
    constants = dict(kernel.defines(recommendation.config, form.dtype, form.layout))
    constants |= {tunable.macro: str(recommendation.config[tunable.name]) for tunable in kernel.tunables}
    config = ", ".join(f"{name}={value}" for name, value in constants.items() if name in words)
    lines = [line.replace("//", "#", 1) for line in launch_comment(recommendation)]
    lines += [kernel.source, f"\nCONFIG = dict({config})\n", *_launcher(recommendation)]
    return {f"{kernel.name}.py": "\n".join(lines).encode()}


def _launcher(recommendation: Recommendation) -> Iterator[str]:
    """Yield the lines of a Python function `launch`, or nothing if the function cannot be written."""
    function, (launch, *others) = recommendation.kernel.triton, recommendation.launches
    assert function is not None
    # Triton passes scratch pointers after the function's own arguments. Ignore them.
    arguments = dict(zip(function.parameters, launch.arguments, strict=False))
    if others or function.descriptors:
        return
    values, tensors = [], []
    for name, argument in arguments.items():
        if isinstance(argument, Scalar):
            values.append(f"{name}={argument.value}")
        elif isinstance(argument, Pointer):
            values.append(f"{name}={None if argument.null else argument.name}")
            tensors += [] if argument.null or argument.name in tensors else [argument.name]
        else:
            return
    yield f"\ndef launch({', '.join(tensors)}):"
    yield f'    """Queue {launch.entry} for {recommendation.problem.key} on PyTorch\'s current stream."""'
    yield f"    {launch.entry}[{launch.grid}]({', '.join(values)}, **CONFIG)\n"


def emit_ptx(answers: Sequence[Answer]) -> Files:
    """Return a file with the PTX of the first answer's best config, and a comment that describes the launch.

    Raise `KernrecError` if there is no compiler, or the source does not compile.
    """
    from kernrec.compile import CompileCache, compile_source
    from kernrec.profile.kernel_code import compile_job_for, dynamic_shared_bytes

    best = answers[0].best
    kernel, sm = best.kernel, best.gpu.sm
    if kernel.triton is None:
        compiled = compile_source(variant_source(kernel, best.config, best.problem), sm, name=kernel.source_name)
    else:
        from kernrec.compile.triton_compile import with_dynamic_shared
        from kernrec.compile.triton_process import compile_apart

        # Compile in the source's folder, because the source may import files from there.
        folder = Path.cwd() if Path(kernel.source_name).is_file() else None
        compiled = compile_apart(compile_job_for(kernel, best.config, best.problem, sm, folder), CompileCache.default())
        compiled = replace(compiled, ptx=with_dynamic_shared(compiled.ptx))
    launches = [replace(bound, shared_bytes=dynamic_shared_bytes(kernel, bound, compiled)) for bound in best.launches]
    return {f"{kernel.name}.ptx": ("\n".join(launch_comment(best, launches)) + "\n" + compiled.ptx).encode()}
