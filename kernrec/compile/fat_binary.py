"""Machine code and PTX in one file, by the CUDA toolkit's own program."""

import subprocess
import tempfile
from pathlib import Path

from kernrec.compile.assemble import toolkit_program
from kernrec.compile.compiled import Compiled, NoCompilerError
from kernrec.errors import KernrecError

_LIMIT_S = 60.0


def fat_binary(compiled: Compiled, sm: int) -> bytes:
    """A fat binary of code for one architecture.

    Raises:
        NoCompilerError: the program `fatbinary` of the CUDA toolkit is not installed.
        KernrecError: it fails.
    """
    tool = toolkit_program("fatbinary")
    if tool is None:
        raise NoCompilerError(
            "a fat binary needs the program fatbinary of the CUDA toolkit: install it with"
            " `pip install nvidia-cuda-nvcc`, or set CUDA_HOME"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.cubin").write_bytes(compiled.cubin)
        (folder / "kernel.ptx").write_text(compiled.ptx, encoding="utf-8")
        command = [tool, "-64", f"--create={folder / 'kernel.fatbin'}"]
        command += [f"--image3=kind=elf,sm={sm},file={folder / 'kernel.cubin'}"]
        command += [f"--image3=kind=ptx,sm={sm},file={folder / 'kernel.ptx'}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise KernrecError(f"fatbinary took longer than {_LIMIT_S:g} s") from None
        if done.returncode:
            raise KernrecError(f"fatbinary failed: {(done.stderr or done.stdout).strip()[:300]}")
        return (folder / "kernel.fatbin").read_bytes()
