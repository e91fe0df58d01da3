"""Carries shipped profiles over to kernels whose source was rearranged but compiles to the same PTX.

    python tools/carry_profiles.py --from main                  # every kernel whose hash changed since `main`
    python tools/carry_profiles.py --from HEAD~1 matmul_mma     # this one

A kernel's identity includes the hash of its source, so a change of a comment makes every profile of it stale. Emulating
all of them again takes over an hour, while most such changes leave the compiled code as it was. This tool keeps the
profiles for which that is shown, under the new hash:

1. Where old and new source have the same tokens (only comments and white space differ), every profile.
2. Otherwise every variant is compiled to PTX from the new source, and from the old one where the PTX is not the stored
   one to the byte. Profiles are kept where both have the same instructions, constants included, in every basic block,
   and among them the memory accesses, barriers and branches in the same order. Names of registers and the order of
   other instructions do not count: NVRTC itself changes those from run to run. That the new source computes the right
   result is what the kernels' tests show. Architectures for which the old source gave the same PTX are compared at the
   first and the last of them.

`tools/build_database.py` then builds what was not carried over.
"""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import track
from same_code import form, tokens

from kernrec import paths
from kernrec.compile.nvrtc import compiler
from kernrec.kernel import Kernel, all_kernels, find_kernel
from kernrec.kernel.source_files import kernel_hash
from kernrec.kernel.spec_reader import load_kernel
from kernrec.profile.probe_profile import Variant
from kernrec.profile.profile_library import variants_of
from kernrec.store import ProfileRow, read_profile_rows, write_profiles

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARY = "kernrec/kernel/library"

_ATTEMPTS = 6
"""Compilations of one variant from each source before its PTX counts as different."""

Profiles = Mapping[tuple[str, int], Sequence[ProfileRow]]
"""The rows of the old kernel by variant key and architecture."""


@dataclass(frozen=True)
class Outcome:
    """The result for one kernel."""

    rows: list[ProfileRow]
    """The profiles that hold for the new source, under its hash."""
    compiled: int
    """Compilations that this took."""
    differing: int
    """Pairs of variant and architecture whose PTX changed, or which had no profile."""


def main() -> int:
    """Carries profiles over; exit status 1 when some could not be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="kernels by name; all by default")
    parser.add_argument("--from", dest="revision", required=True, help="git revision with the old sources")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="compare N variants of a kernel, and carry over all if none differs"
    )
    arguments = parser.parse_args()
    kernels = [find_kernel(name) for name in arguments.kernels] or list(all_kernels())
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        old_library = _checked_out(arguments.revision, Path(folder))
        for kernel in kernels:
            old = load_kernel(old_library / kernel.name / "kernel.toml")
            if old.hash != kernel.hash:
                status |= carry(old, kernel, arguments.sample)
    return status


def carry(old: Kernel, new: Kernel, sample: int | None) -> int:
    """Brings the shipped file of one kernel from the old hash to the new one; 1 when some profiles are left out.

    Args:
        sample: Compare this many variants, and carry over all profiles if none of them differs; None: compare all.
    """
    start = time.monotonic()
    path = paths.shipped("db/prebuilt") / f"{new.name}.profile.parquet"
    stored = read_profile_rows(path)
    done = [row for row in stored if row.kernel_hash == new.hash]
    rows = [row for row in stored if row.kernel_hash == old.hash]
    if done or not rows:
        print(f"{new.name}: {len(done)} profiles of the new source, {len(rows)} of the old one: left as it is")
        return 0 if done else 1
    outcome = carried_over(old, new, rows, sample)
    if outcome.rows:
        write_profiles(path, outcome.rows)
    print(
        f"{new.name} {old.hash} -> {new.hash}: {len(outcome.rows)} of {len(rows)} profiles carried over,"
        f" {outcome.differing} differ, {outcome.compiled} compilations in {time.monotonic() - start:.0f} s"
    )
    return 1 if outcome.differing else 0


def carried_over(old: Kernel, new: Kernel, rows: Sequence[ProfileRow], sample: int | None = None) -> Outcome:
    """The profiles of `old` that hold for `new` too."""
    if kernel_hash(_profiled(old.spec), "") != kernel_hash(_profiled(new.spec), ""):
        print(f"{new.name}: the specification changed, not the source alone: nothing is carried over")
        return Outcome([], 0, len(rows))
    if tokens(old.source) == tokens(new.source):
        return Outcome([replace(row, kernel_hash=new.hash) for row in rows], 0, 0)
    profiles: dict[tuple[str, int], list[ProfileRow]] = {}
    for row in rows:
        profiles.setdefault((row.variant_key, row.sm), []).append(row)
    variants = variants_of(new, sorted({row.sm for row in rows}))
    if sample is not None:
        variants = variants[:: max(1, len(variants) // sample)]
    comparison = _Comparison(old, new)
    carried: list[ProfileRow] = []
    differing = 0
    for variant in track(variants, new.name, disable=not sys.stderr.isatty()):
        for sms in _alike(variant, profiles):
            ends = {sm: comparison.new_hash(variant, sm, profiles[variant.key, sm]) for sm in {sms[0], sms[-1]}}
            if None in ends.values():
                differing += len(sms)
                print(f"  differs: {dict(variant.fixed)} on {sms}")
                continue
            for sm in sms:
                ptx_hash = ends.get(sm) or ends[sms[0]]
                carried += (
                    replace(row, kernel_hash=new.hash, ptx_hash=str(ptx_hash)) for row in profiles[variant.key, sm]
                )
        differing += sum((variant.key, sm) not in profiles for sm in variant.configs)
    if sample is not None:
        compared = {(row.variant_key, row.sm) for row in carried}
        others = [replace(r, kernel_hash=new.hash) for r in rows if (r.variant_key, r.sm) not in compared]
        carried = [] if differing else carried + others
    return Outcome(carried, comparison.compiled, differing)


_COSTS = ("prefetch", "waits", "visits")
"""Keys of a launch that say what counts cost: how far ahead loads are issued, and so on."""
_VALID = ("constraints", "min_sm", "dtype_min_sm", "layouts")
"""Keys of a specification that say where a config is valid; a new layout leaves the profiles of others as they are."""


def _profiled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a specification that a config's profile depends on.

    That leaves out which configs are valid, with what is named for that alone, and what says only what counts cost.
    """
    launches = [{name: value for name, value in launch.items() if name not in _COSTS} for launch in spec["launch"]]
    profiled = {name: value for name, value in spec.items() if name not in (*_VALID, "let")} | {"launch": launches}
    lets: dict[str, str] = {}
    expressions = [value for name, value in profiled.items() if name not in ("description", "tunables")]
    pending, named = set(re.findall(r"\w+", str(expressions))), spec.get("let", {})
    while pending := {name for name in pending if name in named and name not in lets}:
        lets |= {name: named[name] for name in pending}
        pending = {word for name in pending for word in re.findall(r"\w+", named[name])}
    return profiled | {"let": lets}


def _alike(variant: Variant, profiles: Profiles) -> Iterator[list[int]]:
    """The architectures of a variant that have profiles, in groups for which the old source gave the same PTX."""
    groups: dict[str, list[int]] = {}
    for sm in sorted(variant.configs):
        if (variant.key, sm) in profiles:
            groups.setdefault(profiles[variant.key, sm][0].ptx_hash, []).append(sm)
    yield from groups.values()


class _Comparison:
    """Compares what two sources compile to. Variants that the compiler cannot tell apart are compiled once."""

    def __init__(self, old: Kernel, new: Kernel) -> None:
        self.old = old
        self.new = new
        self.compiled = 0
        self._texts: dict[tuple[str, int, tuple[tuple[str, str], ...]], list[str]] = {}

    def new_hash(self, variant: Variant, sm: int, rows: Sequence[ProfileRow]) -> str | None:
        """The hash of the new source's PTX, where it computes the same as the old one's; otherwise None.

        NVRTC orders the code of some variants differently from call to call, so each source is compiled up to
        `_ATTEMPTS` times, until both have given the same code.
        """
        stored = {row.ptx_hash for row in rows}
        old: list[list[tuple[str, ...]]] = []
        new: list[tuple[list[tuple[str, ...]], str]] = []
        for attempt in range(_ATTEMPTS):
            text = self._ptx(self.new, variant, sm, attempt)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if stored == {digest}:
                return digest
            new.append((form(text), digest))
            old.append(form(self._ptx(self.old, variant, sm, attempt)))
            if same := [digest for form_of_new, digest in new if form_of_new in old]:
                return same[0]
        return None

    def _ptx(self, kernel: Kernel, variant: Variant, sm: int, attempt: int) -> str:
        defines = kernel.defines(variant.configs[sm][0], variant.dtype, variant.layout)
        if "LAYOUT_" not in kernel.source:
            defines = {name: value for name, value in defines.items() if not name.startswith("LAYOUT_")}
        texts = self._texts.setdefault((kernel.hash, sm, tuple(defines.items())), [])
        if attempt == len(texts):
            self.compiled += 1
            texts.append(ptx_of(kernel, sm, defines))
        return texts[attempt]


def ptx_of(kernel: Kernel, sm: int, defines: Mapping[str, str]) -> str:
    """The PTX of a variant, without the header, which names compiler and target. No machine code is made of it."""
    from cupy.cuda import nvrtc

    options = [f"--gpu-architecture=compute_{sm}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines.items())]
    program = nvrtc.createProgram(kernel.source, kernel.source_name, [], [])
    try:
        nvrtc.compileProgram(program, options)
        text = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    text = text.decode() if isinstance(text, bytes) else text
    return str(text.replace("\0", "").partition(".address_size")[2])


def _checked_out(revision: str, folder: Path) -> Path:
    """The kernel library of a revision, unpacked into `folder`."""
    archive = subprocess.run(["git", "archive", revision, _LIBRARY], cwd=_ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / _LIBRARY


if __name__ == "__main__":
    print(f"comparing with {compiler()}")
    sys.exit(main())
