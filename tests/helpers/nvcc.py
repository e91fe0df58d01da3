"""The CUDA compiler of the `dev` extra, for tests that compile what `--emit cuda` prints as a user would."""

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
    """The path of nvcc: that of the wheel `nvidia-cuda-nvcc`, else the one on the path; skips the test without one."""
    if shutil.which("g++") is None:
        pytest.skip("nvcc needs a host compiler: there is no g++")
    wheels = importlib.util.find_spec("nvidia")  # a namespace package of all NVIDIA wheels
    for folder in (wheels.submodule_search_locations or []) if wheels else []:
        # The wheels of one major version share a toolkit folder: bin/nvcc, include, nvvm (libdevice and cicc).
        for candidate in sorted(Path(folder).glob("cu[0-9]*/bin/nvcc"), reverse=True):
            if (candidate.parents[1] / "include" / "cuda_runtime.h").is_file():
                return str(candidate)
    if (installed := shutil.which("nvcc")) is not None:
        return installed
    pytest.skip("there is no nvcc: pip install -e '.[dev]'")


def toolkit() -> Path:
    """The folder of the toolkit that `nvcc` belongs to, with `include` and `lib` or `lib64`."""
    return Path(nvcc()).parents[1]


def libraries() -> Path:
    """The folder with the CUDA runtime's static library; skips the test without one."""
    for name in ("lib64", "lib"):
        if (toolkit() / name / "libcudart_static.a").is_file():
            return toolkit() / name
    pytest.skip("there is no libcudart_static.a: pip install -e '.[dev]'")


@cache
def _compilers() -> str:
    """The versions of nvcc and the host compiler."""
    commands = ([nvcc(), "--version"], ["g++", "--version"])
    return "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands)


def complaints(source: Path, sms: Sequence[int | str]) -> str:
    """What nvcc and the host compiler complain about in `source`, compiled to an object file for these architectures.

    Both passes run, that of the device once for each architecture, to PTX: no time goes into machine code. Warnings
    are errors. Empty for a source without complaints. From the cache of runs where nothing changed: the source includes
    headers of the toolkit alone.
    """
    targets = [f"-gencode=arch=compute_{sm},code=compute_{sm}" for sm in sms]
    options = ["-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    command = [nvcc(), "-c", *options, *targets, str(source), "-o", str(source.with_suffix(".o"))]

    def compiled() -> dict[str, np.ndarray]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return {"complaints": np.array(f"{done.stdout}{done.stderr}" if done.returncode else "")}

    key = run_key({}, _compilers(), options, targets, source.read_text(encoding="utf-8"))
    return str(cached_run(key, compiled)["complaints"])
