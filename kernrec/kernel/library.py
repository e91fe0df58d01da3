"""Load the kernels of kernrec: every folder of `kernrec/kernel/library` with a `kernel.toml`.

A kernel's name is its folder's name and begins with its op, as in `matmul_simt`. A folder with a `kernel.py` contains a
Triton kernel. All others are CUDA C++.
"""

from functools import cache
from pathlib import Path
from typing import Any

from kernrec.errors import NoSuchKernelError, UsageError, fold, unknown
from kernrec.kernel.source_files import read_source
from kernrec.kernel.spec import Kernel
from kernrec.kernel.spec_reader import kernel_from, load_kernel
from kernrec.op import Problem, find_op
from kernrec.op.dtype import INSTEAD
from kernrec.op.equivalent import equivalents
from kernrec.util.cache import cached, shipped_toml
from kernrec.util.files import files_hash

_FOLDER = Path(__file__).resolve().parent / "library"


@cache
def kernel_names() -> tuple[str, ...]:
    """Return the names of all kernels, sorted."""
    return tuple(sorted(spec.parent.name for spec in _FOLDER.glob("*/kernel.toml")))


@cache
def _spec(name: str) -> dict[str, Any] | None:
    """Return a kernel's spec, or None if the file is not valid TOML."""
    try:
        return shipped_toml(_FOLDER / name / "kernel.toml")
    except ValueError:
        return None


def _offers(name: str, dtype: str | None, layout: str | None, sm: int | None) -> bool:
    spec = _spec(name) or {}
    if sm is not None and spec.get("dtype_min_sm", {}).get(dtype, spec.get("min_sm", 0)) > sm:
        return False
    return dtype in (None, *spec.get("dtypes", [dtype])) and layout in (None, *spec.get("layouts", [layout]))


@cache
def _shared_by_sources() -> bytes:
    modules = [_FOLDER.parent / "source_files.py", _FOLDER.parent / "cuda_program.py"]
    return files_hash(_FOLDER.parent, [*_FOLDER.glob("*.cuh"), *modules]).encode()


def _source(path: Path) -> str:
    """Return the source of a kernel with its headers inserted. The result is cached until a file changes."""
    made_of = b"\n".join((_shared_by_sources(), path.name.encode(), path.read_bytes()))
    return str(cached(f"{path.parent.name}.source", made_of, lambda: ({"source": read_source(path)}, {}))[0]["source"])


@cache
def _load(name: str) -> Kernel:
    folder, spec = _FOLDER / name, _spec(name)
    path = folder / "kernel.toml"
    if spec is None or not (folder / str(spec.get("source"))).is_file():
        return load_kernel(path)  # `load_kernel` raises an error that says what is wrong.
    kernel = kernel_from(spec, f"{name}/kernel.toml", _source(folder / spec["source"]))
    if kernel.name != name:
        raise UsageError(f"{name}/kernel.toml: name: expected {name!r} as the folder, got {kernel.name!r}")
    if not name.startswith(f"{kernel.op}_"):
        raise UsageError(f"{name}/kernel.toml: name: expected a name that begins with '{kernel.op}_', the op")
    return kernel


def find_kernel(name: str) -> Kernel:
    """Return a kernel by name. Ignore case, blanks, `-` and `_`. Raise `UsageError` if there is none."""
    by_spelling = {fold(kernel): kernel for kernel in kernel_names()}
    if fold(str(name)) not in by_spelling:
        raise unknown("kernel", name, kernel_names(), see="kernrec list kernels")
    return _load(by_spelling[fold(str(name))])


def all_kernels() -> tuple[Kernel, ...]:
    """Return all kernels in CUDA C++, keyed by name."""
    return tuple(_of_op("", False, None, None))


def _of_op(op: str, in_triton: bool, dtype: str | None, layout: str | None, sm: int | None = None) -> list[Kernel]:
    names = (
        name for name in kernel_names() if name.startswith(f"{op}_" if op else "") and _offers(name, dtype, layout, sm)
    )
    return [_load(name) for name in names if ("triton" in (_spec(name) or {})) == in_triton]


def triton_kernels(
    op: str = "", dtype: str | None = None, layout: str | None = None, sm: int = 1000
) -> tuple[Kernel, ...]:
    """Return the Triton kernels of an op for a dtype and layout on the architecture `sm`."""
    kernels = _of_op(op, True, dtype, layout, sm)
    return tuple(kernel for kernel in kernels if kernel.runs_on(dtype or kernel.dtypes[0], sm))


def kernels_for(
    op: str, dtype: str | None = None, layout: str | None = None, sm: int | None = None
) -> tuple[Kernel, ...]:
    """Return the CUDA C++ kernels of an op for a dtype, layout and architecture. Arguments of None are ignored.

    A kernel's constraints may still exclude the architecture (`Kernel.runs_on`).
    """
    op = find_op(op).name
    return tuple(kernel for kernel in _of_op(op, False, dtype, layout, sm) if kernel.op == op)


def able_kernels(op: str, dtype: str, layout: str, sm: int) -> tuple[Kernel, ...]:
    """Return the kernels of an op for a dtype, layout and architecture. Raise `NoSuchKernelError` if there are none."""
    able = tuple(kernel for kernel in kernels_for(op, dtype, layout, sm) if kernel.runs_on(dtype, sm))
    if not able:
        if not kernels_for(op):
            raise NoSuchKernelError(f"no kernel of the library implements {op}")
        offered = implemented(op, sm) + _nearest(op, dtype, sm)
        raise NoSuchKernelError(f"no kernel implements {op} for {dtype}, {layout} on sm_{sm}; {offered}")
    return able


def kernels_of(problem: Problem, sm: int) -> tuple[Kernel, ...]:
    """Return the CUDA C++ kernels of a problem and its equivalents. Raise `NoSuchKernelError` if there is none."""
    able = [
        kernel
        for form in equivalents(problem)
        for kernel in kernels_for(form.op, form.dtype, form.layout, sm)
        if kernel.runs_on(form.dtype, sm)
    ]
    return tuple(able) or able_kernels(problem.op, problem.dtype, problem.layout, sm)


def _nearest(op: str, dtype: str, sm: int) -> str:
    able = {other for kernel in kernels_for(op) for other in kernel.dtypes if kernel.runs_on(other, sm)}
    nearest = None if dtype in able else next((other for other in INSTEAD.get(dtype, ()) if other in able), None)
    return f"; nearest to {dtype} is {nearest}" if nearest else ""


def implemented(op: str, sm: int) -> str:
    """Return a message on the dtypes and layouts of an op's kernels: `implemented are f32 (nn), f16 (nn, nt)`."""
    layouts: dict[str, dict[str, None]] = {}
    for kernel in kernels_for(op):
        for dtype in kernel.dtypes:
            if kernel.runs_on(dtype, sm):
                layouts.setdefault(dtype, {}).update(dict.fromkeys(kernel.layouts))
    listed = [f"{dtype} ({', '.join(layouts[dtype])})" for dtype in find_op(op).dtypes if dtype in layouts]
    if not listed:
        return f"no kernel of this op runs on sm_{sm}; only imported measurements can be used there"
    return "implemented are " + ", ".join(listed)
