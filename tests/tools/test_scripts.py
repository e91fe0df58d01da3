"""`tools/carry_profiles.py`: profiles of kernels whose code did not change."""

import subprocess
import sys
from dataclasses import replace

from kernrec.kernel import find_kernel
from tests.helpers.paths import ROOT


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, f"tools/{name}.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_profiles_of_unchanged_kernels_are_kept():
    done = tool("carry_profiles", "--from", "HEAD", "transpose_tiled")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_profiles_are_kept_only_if_comments_changed():
    from carry_profiles import carry

    kernel = find_kernel("transpose_tiled")
    changed = replace(kernel, source=f"{kernel.source} int x;")
    assert carry(changed, kernel) == 1
