"""Carry shipped profiles over to kernels in which only comments and white space changed.

    python tools/carry_profiles.py --from main                  # every kernel whose hash changed since `main`
    python tools/carry_profiles.py --from HEAD~1 matmul_mma     # this kernel only

A kernel's identity includes the hash of its source, so changing a comment makes all its profiles stale. Emulating them
again takes over an hour. This tool stores the profiles under the new hash if the tokens of source and specification are
unchanged. `tools/build_database.py` rebuilds all others.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from profile_files import read_profile_rows, write_profiles
from same_code import tokens

from kernrec import paths
from kernrec.kernel import Kernel, all_kernels, find_kernel
from kernrec.kernel.spec_reader import load_kernel

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARY = "kernrec/kernel/library"


def main() -> int:
    """Carry profiles over; return exit status 1 if some kernels must be rebuilt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="kernels by name; all by default")
    parser.add_argument("--from", dest="revision", required=True, help="git revision with the old sources")
    arguments = parser.parse_args()
    kernels, status = [find_kernel(name) for name in arguments.kernels] or list(all_kernels()), 0
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", arguments.revision, _LIBRARY]
        archive = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for kernel in kernels:
            old = load_kernel(Path(folder, _LIBRARY, kernel.name, "kernel.toml"))
            if old.hash != kernel.hash:
                status |= carry(old, kernel)
    return status


def carry(old: Kernel, new: Kernel) -> int:
    """Store the profiles of one kernel under its new hash; return 1 if its code or specification changed."""
    path = paths.shipped("db/prebuilt") / f"{new.name}.profile.parquet"
    if old.spec != new.spec or tokens(old.source) != tokens(new.source):
        print(f"{new.name}: the code or the specification changed: run tools/build_database.py {new.name}")
        return 1
    rows = [replace(row, kernel_hash=new.hash) for row in read_profile_rows(path) if row.kernel_hash == old.hash]
    if rows:
        write_profiles(path, rows)
    print(f"{new.name} {old.hash} -> {new.hash}: {len(rows)} profiles carried over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
