"""Build the replacements for CUDA's libraries, run a program with them, and serve the program's CUDA calls."""

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from kernrec import paths
from kernrec.capture.recorded_calls import Recorder
from kernrec.capture.session import Session
from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.gpu import GPU

NATIVE = Path(__file__).resolve().parent / "native"
_DRIVER, _NVML, _RUNTIMES = "libcuda.so.1", "libnvidia-ml.so.1", (12, 13)
_DEFINED = re.compile(r"^API (?:[\w:]+[ *]+)+(\w+)\(", re.MULTILINE)
_CALL = re.compile(r"_*cu")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=default", "-fno-strict-aliasing")
_LINKED = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread", "-ldl", "-Wl,-s")
_EXPORTS = {
    "cuda": "cu*; _ZN7capture*; _ZNK7capture*; _ZT[ISV]N7capture*",
    "nvidia-ml": "nvml*",
    "cudart": "cuda*; __cuda*",
}
"""Symbols that each library exports. Further symbols would replace symbols of the program."""


def libraries() -> Path:
    """Return the folder of the replacement libraries, which are compiled on first use.

    Raises:
        KernrecError: The system is not Linux or has no C++ compiler, or the compiler fails.
    """
    if not sys.platform.startswith("linux"):
        raise KernrecError("kernrec capture runs CUDA programs on Linux only")
    digest = hashlib.sha256(repr((_FLAGS, _LINKED, _EXPORTS)).encode())
    for path in sorted(NATIVE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = paths.cache() / f"capture-{digest.hexdigest()[:16]}"
    if not (folder / _DRIVER).exists():
        compile_libraries(folder)
    return folder


def compile_libraries(folder: Path) -> None:
    """Compile the replacement libraries into a folder."""
    compiler = next(
        (name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and shutil.which(name)), None
    )
    if compiler is None:
        raise KernrecError("kernrec capture needs a C++ compiler to make its libraries: install g++, or set CXX")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch, made = Path(name), Path(name, "libraries")
        made.mkdir()
        for kind in ("driver", "runtime"):
            (scratch / f"stubs_{kind}.cpp").write_text(_stubs(kind))
        runtime = [*sorted(NATIVE.glob("runtime_*.cpp")), scratch / "stubs_runtime.cpp"]
        driver = [*(NATIVE / f"{part}.cpp" for part in ("core", "program", "driver")), scratch / "stubs_driver.cpp"]
        shared = [*driver, *(source for source in runtime if not _by_version(source))]
        jobs = [(source, 0) for source in shared]
        jobs += [(source, version) for source in runtime if _by_version(source) for version in _RUNTIMES]

        def compiled(job: tuple[Path, int]) -> str:
            source, version = job
            target = scratch / f"{source.stem}-{version}.o"
            defined = [f"-DRUNTIME_MAJOR={version}"] if version else []
            _run_tool([compiler, *_FLAGS, *defined, f"-I{NATIVE}", "-c", str(source), "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = dict(zip(jobs, pool.map(compiled, jobs), strict=True))

        def link(library: str, inputs: Sequence[str]) -> None:
            exports, name = scratch / "exports", library.partition(".")[0].removeprefix("lib")
            version = library if name == "cudart" else ""  # Programs expect symbol versions in cudart only.
            exports.write_text(f"{version} {{ global: {_EXPORTS[name]}; local: *; }};")
            named = [f"-Wl,-soname,{library}", f"-Wl,--version-script={exports}"]
            _run_tool([compiler, *inputs, *named, *_LINKED, "-o", str(made / library)])

        link(_DRIVER, [*(objects[source, 0] for source in driver), *_aliases(_other_names("driver"))])
        link(_NVML, [*_FLAGS, str(NATIVE / "nvml.cpp"), str(made / _DRIVER)])
        # A program that was compiled with `--default-stream per-thread` calls functions with the suffix _ptsz or _ptds.
        others = _other_names("runtime")
        by_thread = {f"{call}{suffix}": call for call in (*_defined(), *others) for suffix in ("_ptsz", "_ptds")}
        aliases = _aliases(others | by_thread)
        for version in _RUNTIMES:
            linked = [objects.get((source, version)) or objects[source, 0] for source in runtime]
            link(f"libcudart.so.{version}", [*linked, *aliases, str(made / _DRIVER)])
        try:
            made.rename(folder)
        except OSError:
            # The folder may exist by now, because another process also compiled the libraries.
            if not (folder / _DRIVER).exists():
                raise


def _aliases(names: Mapping[str, str]) -> list[str]:
    return [f"-Wl,--defsym={name}={call}" for name, call in names.items()]


def _by_version(source: Path) -> bool:
    return "RUNTIME_MAJOR" in source.read_text(encoding="utf-8")


def _defined() -> list[str]:
    files = NATIVE.glob("runtime_*.cpp")
    trivial = [call for call, value in _public("runtime").items() if value is not None and not _CALL.match(value)]
    return trivial + [call for path in files for call in _DEFINED.findall(path.read_text(encoding="utf-8"))]


def _public(name: str) -> dict[str, str | None]:
    """Return the behavior of each public function of the library `driver` or `runtime`.

    The behavior is a number to write to the first argument, the name of a function with the same behavior, or an empty
    text for a function that only reports success. It is None if C++ code defines the function, or kernrec lacks it.
    """
    words = (NATIVE / f"{name}_calls.txt").read_text(encoding="utf-8").split()
    return {call: value if equals else None for call, equals, value in (word.partition("=") for word in words)}


def _other_names(library: str) -> dict[str, str]:
    return {call: value for call, value in _public(library).items() if value and _CALL.match(value)}


def _stubs(name: str) -> str:
    def stub(call: str, value: str | None) -> str:
        if value is None:
            weak = '__attribute__((weak, visibility("default")))'
            return f'extern "C" {weak} void {call}() {{ capture::missing("{call}"); }}'
        return f"API int {call}({f'int* to) {{ *to = {value};' if value else ') {'} return 0; }}"

    others = _other_names(name)
    stubs = (stub(call, value) for call, value in _public(name).items() if call not in others)
    return "\n".join(['#include "core.h"', *stubs, ""])


def _run_tool(command: Sequence[str], failure: str = "kernrec capture could not compile its libraries") -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = re.findall(r".*(?:error|undefined|multiple).*", done.stderr + done.stdout)
        raise KernrecError(f"{failure}: {(lines or [f'exit {done.returncode}'])[0][:300]}")


SOCKET_VARIABLE = "KERNREC_CAPTURE_SOCKET"
_FILES_PER_TRITON_FUNCTION = 50
_STATIC_RUNTIME = b"libcudart_static_"
_ELF32 = b"\x7fELF\x01"
_OLD_RUNTIME = re.compile(rb"libcudart\.so\.(\d+)")
_OTHER_LIBRARY = re.compile(rb"lib(?:cu(?:blas|dnn|fft|rand|sparse|solver|tensor)|nccl|npp|nvjpeg)\w*\.so")
_LARGEST_PROGRAM = 1 << 30


def run_program(
    command: Sequence[str], gpu: GPU, folder: Path, recorder: Recorder, build_options: Sequence[str], budget: int
) -> int:
    """Run a program, record its launches, and return its exit status.

    Args:
        command: The program and its arguments. A .cu file is compiled first.
        gpu: The GPU that the program sees.
        folder: Folder for call files of Triton functions.
        build_options: Options of nvcc for a .cu file.
        budget: Maximum number of PTX instructions for a batch of thread blocks.

    Raises:
        KernrecError: The program cannot run here. The message states the reason.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernrec-")))
        refused = scratch / "refused"
        stack.callback(lambda: recorder.refused.update(_lines(refused)))
        environment = {**os.environ, **_triton_variables(command, folder, gpu, refused)}
        if command[0].endswith((".cu", ".cuh")):
            program = scratch / Path(command[0]).stem
            _build(Path(command[0]), program, gpu, build_options)
            command = [str(program), *command[1:]]
        _check(command[0])
        if _runs_on_gpu(command):
            return _run(command, environment)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(scratch / "socket"))
        listener.listen()
        threading.Thread(target=accept, args=(listener, gpu, recorder, budget), daemon=True).start()
        environment[SOCKET_VARIABLE] = str(scratch / "socket")
        paths = [str(libraries()), environment.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        return _run(command, environment)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        program = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise UsageError(cannot_be("run", command[0], error)) from None
    while True:
        try:
            return program.wait()
        except KeyboardInterrupt:  # Ctrl-C also reaches the program, which may ignore it. Wait until the program ends.
            if program.poll() is None:
                program.send_signal(signal.SIGINT)


def accept(listener: socket.socket, gpu: GPU, recorder: Recorder, budget: int) -> None:
    """Accept connections of processes until the socket is closed. Each process has a thread."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        recorder.called = True
        threading.Thread(target=Session(connection, gpu, recorder, budget).serve, daemon=True).start()


def _build(source: Path, program: Path, gpu: GPU, options: Sequence[str]) -> None:
    from kernrec.compile.nvcc import nvcc_version, required_nvcc

    if not source.is_file():
        raise UsageError(f"{source} is not a file")
    folder, version = libraries(), nvcc_version().removeprefix("nvcc ").partition(".")[0]
    target = min(gpu.sm, 90) if gpu.sm < 100 else gpu.sm
    linked = ["-cudart", "none", f"-L{folder}", f"-l:libcudart.so.{version}", "-l:libcuda.so.1"]
    compiled = [*options, f"-arch=compute_{target}", "-lineinfo", "-O3", "-std=c++17", f"-I{source.parent}"]
    command = [str(required_nvcc()), *compiled, str(source), "-o", str(program), *linked]
    _run_tool(command, f"{source} cannot be compiled")


def _check(program: str) -> None:
    """Raise `UsageError` if a program cannot run with kernrec's replacements for the CUDA libraries."""
    path = shutil.which(program)
    if path is None or (size := Path(path).stat().st_size) > _LARGEST_PROGRAM:
        return
    content = Path(path).read_bytes() if size else b""
    if content.startswith(_ELF32):
        raise UsageError(f"{program} is a 32-bit program; CUDA 12 and 13 have 64-bit programs only")
    if content.startswith(b"\x7fELF") and _STATIC_RUNTIME in content:
        raise UsageError(f"{program} contains the CUDA runtime; rebuild it with nvcc -cudart shared")
    if content.startswith(b"\x7fELF") and (library := _OTHER_LIBRARY.search(content)):
        raise UsageError(f"{program} needs {library[0].decode()}, which needs a GPU; kernrec can only run CUDA kernels")
    for version in {int(number) for number in _OLD_RUNTIME.findall(content)} if content.startswith(b"\x7fELF") else ():
        if version not in (12, 13):
            raise UsageError(f"{program} needs the runtime library of CUDA {version}; rebuild it with CUDA 12 or 13")


def _is_python(command: Sequence[str]) -> bool:
    return bool(re.match(r"(python|pytest|torchrun|uv|accelerate)", Path(command[0]).name))


def _runs_on_gpu(command: Sequence[str]) -> bool:
    """Return whether a command is a Python program that can run Triton on a GPU of this machine."""
    if not _is_python(command) or importlib.util.find_spec("triton") is None:
        return False
    from kernrec.compile.gpu_stand_in import has_driver

    return has_driver()


def _triton_variables(command: Sequence[str], folder: Path, gpu: GPU, refused: Path) -> dict[str, str]:
    """Return environment variables that make Python programs write Triton launches to `folder`.

    Launches that cannot be captured are listed in the file `refused`.
    """
    if importlib.util.find_spec("triton") is None:
        return {}
    from kernrec.triton.calls.hooks import COUNT_VARIABLE, FOLDER_VARIABLE, GPU_VARIABLE, REFUSED_VARIABLE, SITE

    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    variables = {
        FOLDER_VARIABLE: str(folder),
        GPU_VARIABLE: gpu.name,
        COUNT_VARIABLE: str(_FILES_PER_TRITON_FUNCTION),
        REFUSED_VARIABLE: str(refused),
        "PYTHONPATH": path,
    }
    if not _runs_on_gpu(command):
        # Without a driver, vLLM uses Triton only if CUDA_VISIBLE_DEVICES hides all devices.
        variables["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        # Disable torch.compile: for tensors on the CPU, it would generate C++, which cannot call Triton functions.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables
