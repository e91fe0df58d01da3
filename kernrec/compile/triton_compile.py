"""Compile Triton functions without a driver or torch.

Loading a source executes it, so only worker processes use this module.
"""

import io
import os
import re
import sys
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from kernrec.compile.compiled import (
    Compiled,
    CompileError,
    CompileJob,
    NoCompilerError,
    TritonTarget,
    parse_resources,
)
from kernrec.compile.triton_launcher import (
    DESCRIPTOR,
    DescribedMap,
    LauncherNeeds,
    needs_of,
    parameters_of,
    with_needs,
)
from kernrec.compile.triton_load import jit_function, module_of, python_value
from kernrec.compile.triton_version import check_interfaces, fp_fusion, triton_compiler
from kernrec.errors import unknown
from kernrec.gpu import limits
from kernrec.kernel.triton_function import OPTIONS, SCRATCH, fields_name, items_of
from kernrec.util.patch import environment, replaced

_DYNAMIC = re.compile(r"^(\s*)\.extern\s+\.shared(\s+[^;\[]+)\[\]", re.MULTILINE)
_HUGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864"
"""Tunables that make the GNU C library use huge pages, so that the assembler has fewer page faults."""
_FIXED = re.compile(r"^(\s*)\.shared(\s+[^;\[]*\bglobal_smem)\[\d+\]", re.MULTILINE)


def compile_triton(job: CompileJob) -> Compiled:
    """Compile a Triton function. Its shared memory is reported as static shared memory.

    Raises:
        CompileError: the source cannot be loaded or compiled. The error states the line.
    """
    target = job.triton
    assert target is not None
    log = io.StringIO()
    with _captured(log), tempfile.TemporaryDirectory() as folder, _set_up(folder):
        try:
            check_interfaces()
            function = jit_function(module_of(target.module, job.source, job.name, target.folder), target.function)
            result, shared = _compile(function, job, target)
            ptx, cubin = result.asm["ptx"], result.asm["cubin"]
            name = result.metadata.name
            needs = _launcher_needs(result.metadata, job)
        except CompileError:
            raise
        except NoCompilerError as error:
            raise CompileError(str(error)) from None
        except Exception as error:
            raise CompileError(_message(error, job, log.getvalue()), log.getvalue()) from None
    text = log.getvalue()
    if refused := _too_much_shared(job, shared):
        raise CompileError(refused, text)
    reported = parse_resources(text).get(name) or parse_resources(_assembler_log(ptx, job.sm)).get(name)
    if reported is None:
        raise CompileError(
            f"{job.name}: the assembler of {triton_compiler()} did not report the resources of {name}", text
        )
    used = replace(reported, static_smem_bytes=shared)
    # State the size of shared memory in the PTX, so that launches need not set it.
    ptx = _DYNAMIC.sub(rf"\g<1>.shared\g<2>[{shared}]", ptx) if shared else ptx
    own = sum(parameters_of(kind, needs) for kind in target.signature.values())
    ptx = with_needs(_with_scratch(ptx, name, own), needs)
    return Compiled(ptx, cubin, {name: used}, triton_compiler(), text)


@contextmanager
def _set_up(folder: str) -> Iterator[None]:
    """Let Triton cache in `folder`, and keep the log of its assembler.

    Triton's own files are excluded from its cache key, because hashing them is slow and kernrec caches results itself.
    """
    modules = [import_module(name) for name in ("triton.runtime.cache", "triton.compiler.compiler")]
    with ExitStack() as stack:
        tunables = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), _HUGE_PAGES]))
        stack.enter_context(
            environment(
                TRITON_CACHE_DIR=folder,
                TRITON_CACHE_MANAGER="kernrec.compile.triton_cache:ResultFiles",
                TRITON_DUMP_PTXAS_LOG="1",
                GLIBC_TUNABLES=tunables,
            )
        )
        for module in modules:
            if hasattr(module, "triton_key"):
                stack.enter_context(replaced(module, triton_key=triton_compiler))
        yield


def with_dynamic_shared(ptx: str) -> str:
    """Convert PTX for the CUDA driver, so that a launch can request over 48 KB of shared memory.

    Raises:
        CompileError: a launch needs additional arguments, which only the emulator provides.
    """
    if needs_of(ptx) is not None:
        raise CompileError(
            "it needs tensor descriptors or scratch memory of Triton's launcher: it can be analyzed, but not run"
        )
    return _FIXED.sub(r"\g<1>.extern .shared\g<2>[]", ptx)


def _launcher_needs(metadata: Any, job: CompileJob) -> LauncherNeeds | None:
    """Return the arguments that Triton's launcher adds, or None. Raise `CompileError` if kernrec cannot pass them."""
    if getattr(metadata, "profile_scratch_size", 0):
        raise CompileError(f"{job.name}: needs scratch memory of Triton's profiler, which kernrec does not provide")
    scratch = int(getattr(metadata, "global_scratch_size", 0))
    described = any(kind.startswith(DESCRIPTOR) for kind in (job.triton.signature.values() if job.triton else ()))
    if not described:
        return LauncherNeeds(scratch, ()) if scratch else None
    if not hasattr(metadata, "tensordesc_meta"):
        raise CompileError(f"{job.name}: takes tensor descriptors; {triton_compiler()} passes them in another way")
    maps = metadata.tensordesc_meta or ()
    if any(entry.get("is_im2col") for entry in maps):
        raise CompileError(f"{job.name}: takes a tensor descriptor of images (im2col), which kernrec does not provide")
    return LauncherNeeds(scratch, tuple(DescribedMap.of(entry) for entry in maps))


def _with_scratch(ptx: str, name: str, own: int) -> str:
    """Declare the scratch memory pointers that a kernel lacks. Triton 3.4 declares only one of the two pointers."""
    head = re.search(rf"\.entry\s+{name}\s*\(([^)]*)\)", ptx)
    missing = own + SCRATCH - head[1].count(".param") if head else 0
    # Add no lines, because the machine code refers to lines by number.
    more = "".join(f", .param .u64 {name}_scratch_{index}" for index in range(missing))
    end = len(ptx[: head.end(1)].rstrip()) if head and more else 0
    return ptx[:end] + more + ptx[end:] if end else ptx


def _assembler_log(ptx: str, sm: int) -> str:
    import triton

    from kernrec.compile.assemble import run_assembler  # Import late: only old releases of Triton need it.

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return run_assembler(str(tool), ptx, f"sm_{sm}", "kernel.ptx")[1]


def _compile(function: Any, job: CompileJob, target: TritonTarget) -> tuple[Any, int]:
    import triton
    from triton.backends.compiler import GPUTarget

    parameters = [parameter.name for parameter in function.params]
    defines = {name: text if isinstance(text, int) else python_value(text) for name, text in job.defines.items()}
    # If a compiler option and a parameter have the same name, a launch's keyword argument sets both.
    options = {name: defines[name] for name in OPTIONS if name in defines}
    if not options.get("maxnreg"):
        options.pop("maxnreg", None)
    defines = {name: value for name, value in defines.items() if name not in OPTIONS or name in parameters}
    # Drop the data type and layout, which kernrec passes to every kernel, if the function has no such parameters.
    defines = {k: v for k, v in defines.items() if k in parameters or not k.startswith(("DTYPE_", "LAYOUT_"))}
    fields = {name: defines.pop(fields_name(name)) for name in parameters if fields_name(name) in defines}
    items = {name: items_of(name, {*defines, *target.signature}) for name in parameters}
    accepted = {*parameters, *(item for names in items.values() for item in names)}
    for name in defines:
        if name not in accepted:
            raise CompileError(f"{job.name}: {target.function}: {unknown('parameter', name, parameters)}")
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}

    def kind_of(name: str, path: tuple[int, ...]) -> str:
        if name not in target.signature:
            constants[path] = defines[name]
            return "constexpr"
        kind, _, divisible = target.signature[name].partition(":")
        if divisible:
            attributes[path] = [["tt.divisibility", int(divisible)]]
        return kind

    for index, parameter in enumerate(function.params):
        name = parameter.name
        if names := items[name]:
            kinds = tuple(kind_of(item, (index, place)) for place, item in enumerate(names))
            signature[name] = namedtuple("Arguments", str(fields[name]))(*kinds) if name in fields else kinds
            continue
        if name not in target.signature and name not in defines:
            if not parameter.has_default:
                raise CompileError(f"{job.name}: {target.function}: parameter {name} is missing")
            defines[name] = parameter.default
        signature[name] = kind_of(name, (index,))
    # Compile the function under its Python name, even with `@triton.jit(repr=...)`.
    has_repr = getattr(function, "_repr", None) is not None
    with _shared_memory_checked(job), replaced(function, _repr=None) if has_repr else nullcontext():
        result = triton.compile(
            _source_type(function)(function, signature, constants, attributes),
            target=GPUTarget("cuda", job.sm, 32),
            options={**options, "enable_fp_fusion": fp_fusion()},
        )
    return result, int(result.metadata.shared)


def _source_type(function: Any) -> Any:
    if getattr(function, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def _too_much_shared(job: CompileJob, shared: int) -> str | None:
    most = limits(job.sm).smem_per_block
    if shared <= most:
        return None
    return f"{job.name}: needs {shared} bytes of shared memory a block; sm_{job.sm} has {most}"


@contextmanager
def _shared_memory_checked(job: CompileJob) -> Iterator[None]:
    """Within a `with` block, stop a compilation before assembly if a block needs too much shared memory.

    Before Triton 3.5, this function does nothing, because Triton has no suitable hook.
    """
    import triton

    runtime: Any = getattr(getattr(triton, "knobs", None), "runtime", None)
    if not hasattr(runtime, "add_stages_inspection_hook"):
        yield
        return

    def inspect(backend: Any = None, stages: Any = None, *rest: Any) -> tuple[str, str] | None:
        if stages is None:
            return "kernrec", "kernrec"  # Triton adds the returned text to its cache key.
        assemble = stages["cubin"]

        def assembled(source: Any, metadata: Any) -> Any:
            if refused := _too_much_shared(job, int(metadata["shared"])):
                raise CompileError(refused)
            return assemble(source, metadata)

        stages["cubin"] = assembled
        return None

    with replaced(runtime, add_stages_inspection_hook=inspect):
        yield


def _message(error: Exception, job: CompileJob, log: str) -> str:
    from triton.compiler.errors import CompilationError

    if isinstance(error, CompilationError):
        return compilation_message(error, job.source, job.name)
    if isinstance(error, SyntaxError):
        return f"{job.name}:{error.lineno}: {error.msg}"
    if isinstance(error, ModuleNotFoundError):
        return f"{job.name}: needs the module {error.name}, which is not installed"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reported = [line for line in log.splitlines() if "error:" in line]
    text = reported[0].split("error:", 1)[1].strip() if reported else lines[-1] if lines else "no message"
    return f"{job.name}: {type(error).__name__}: {text:.200}"


def compilation_message(error: Any, source: str = "", name: str = "") -> str:
    """Return the last line of a Triton compiler error, with the source line."""
    from triton.compiler.errors import CompilationError

    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    what = str(error.__cause__ or error.error_message or error).strip().splitlines()
    message = what[-1] if what else "does not compile"
    number = getattr(error.node, "lineno", None)
    lines = [line.strip() for line in (error.src or "").splitlines()]
    place, code = name, ""
    if number is not None and 1 <= number <= len(lines):
        code = f" (in `{lines[number - 1]:.80}`)"
        whole = [line.strip() for line in source.splitlines()]
        starts = [i for i in range(len(whole)) if whole[i : i + len(lines)] == lines]
        place = f"{name}:{starts[0] + number}" if len(starts) == 1 else name
    return f"{place}: {message}{code}" if place else f"{message}{code}"


@contextmanager
def _captured(log: io.StringIO) -> Iterator[None]:
    """Within a `with` block, write all output to `log`, even that of C++ libraries."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            with redirect_stdout(log):
                try:
                    yield
                finally:
                    sys.stderr.flush()
                    file.seek(0)
                    log.write(file.read().decode(errors="replace"))
        finally:
            os.dup2(saved, 2)
            os.close(saved)
