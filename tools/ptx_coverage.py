"""How much of a folder of PTX the emulator understands.

    python tools/ptx_coverage.py FOLDER [--all]

Prints how many kernels (`.entry`) decode in every instruction, and what the others lack, by number of kernels; `--all`
names them. PTX comes from `nvcc -ptx -arch=sm_80`, for example of NVIDIA's cuda-samples or of Rodinia, which are not
part of this repository. Nothing is executed.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError
from kernrec.ptx import KernelLaunch, Module, parse
from kernrec.ptx.execution.emulator import Emulation, EmulationOptions
from kernrec.ptx.ir.errors import ParseError


def missing(module: Module, entry: str) -> list[str]:
    """The parts of a kernel that the emulator lacks, each once: instructions, or why it cannot be launched."""
    try:
        function = module.functions[entry]
        arguments = [np.zeros(parameter.size, np.uint8) for parameter in function.parameters]
        launch = KernelLaunch(entry, function.directives.get("reqnctapercluster", (1,)), (32,), arguments, {})
        emulation = Emulation(module, launch, EmulationOptions(count=False))
    except KernrecError as error:
        return [str(error)]
    return list(dict.fromkeys(emulation.unsupported()))


def entries(folder: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """File, name and what is missing of each kernel; a file that cannot be read counts as as many kernels as it has."""
    for path in sorted(folder.rglob("*.ptx")):
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            module = parse(text)
        except ParseError as error:
            line = text.split("\n")[error.line - 1].strip()
            for _ in range(max(text.count(".entry "), 1)):
                yield path, "?", [f"parser: {' '.join(line.split())[:70]}"]
            continue
        for entry in module.entries:
            yield path, entry, missing(module, entry)


def main() -> None:
    """Prints the coverage."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="name the kernels that lack something")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(f"{arguments.folder} is not a folder")
    total, complete = 0, 0
    lacks: Counter[str] = Counter()
    for path, entry, reasons in entries(arguments.folder):
        total += 1
        complete += not reasons
        lacks.update(reasons)
        if arguments.all and reasons:
            print(f"{path.name}: {entry}: {'; '.join(reasons)}")
    if not total:
        parser.error(f"{arguments.folder} has no kernel in a .ptx file")
    print(f"{complete} of {total} kernels decode in every instruction ({100 * complete / total:.1f} %)")
    for reason, number in lacks.most_common():
        print(f"{number:6d}  {reason}")


if __name__ == "__main__":
    main()
