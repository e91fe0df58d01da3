"""Compiles the output of `--emit cuda` with nvcc from the `dev` extra, as a user would."""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.run_cache import cached_run, run_key


def nvcc() -> str:
    """Return the path of nvcc from the wheel `nvidia-cuda-nvcc`, else from PATH. Skip the test if there is none."""
    if shutil.which("g++") is None:
        pytest.skip("nvcc needs a host compiler: there is no g++")
    wheels = importlib.util.find_spec("nvidia")  # all NVIDIA wheels share this namespace package
    for folder in (wheels.submodule_search_locations or []) if wheels else []:
        # Wheels of one major version share one toolkit folder with bin/nvcc, include and nvvm (libdevice and cicc).
        for candidate in sorted(Path(folder).glob("cu[0-9]*/bin/nvcc"), reverse=True):
            if (candidate.parents[1] / "include" / "cuda_runtime.h").is_file():
                return str(candidate)
    if (installed := shutil.which("nvcc")) is not None:
        return installed
    pytest.skip("there is no nvcc: pip install -e '.[dev]'")


def toolkit() -> Path:
    """Return the toolkit folder of `nvcc`, with `include` and `lib` or `lib64`."""
    return Path(nvcc()).parents[1]


def libraries() -> Path:
    """Return the folder with the CUDA runtime's static library. Skip the test if there is none."""
    for name in ("lib64", "lib"):
        if (toolkit() / name / "libcudart_static.a").is_file():
            return toolkit() / name
    pytest.skip("there is no libcudart_static.a: pip install -e '.[dev]'")


@cache
def _compilers() -> str:
    commands = ([nvcc(), "--version"], ["g++", "--version"])
    return "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)


def complaints(source: Path, sms: Sequence[int | str]) -> str:
    """Compile `source` for these architectures, the device code only to PTX. Return the warnings (which count as
    errors) and errors of nvcc and the host compiler. The cached result depends only on the compilers, their options and
    the source."""
    targets = [f"-gencode=arch=compute_{sm},code=compute_{sm}" for sm in sms]
    options = ["-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    command = [nvcc(), "-c", *options, *targets, str(source), "-o", str(source.with_suffix(".o"))]

    def compiled() -> dict[str, np.ndarray]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {"complaints": np.array(f"{done.stdout}{done.stderr}" if done.returncode else "")}

    key = run_key({}, _compilers(), options, targets, source.read_text(encoding="utf-8"))
    return str(cached_run(key, compiled)["complaints"])
