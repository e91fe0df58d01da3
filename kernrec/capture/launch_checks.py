"""Check the launches of a captured program for memory errors and data races while they run."""

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from kernrec.capture.call_file import short_name
from kernrec.capture.loaded_module import LoadedModule
from kernrec.checking.check_launch import Checked, is_harmless, watched_memory
from kernrec.checking.findings import Describer, Finding, distinct
from kernrec.errors import KernrecError
from kernrec.kernel.cuda_signature import signatures
from kernrec.kernel.source_files import read_text
from kernrec.ptx import Counts, EmulationError, KernelLaunch
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT

_CHUNK = 64
_MOST_LAUNCHES_PER_KERNEL = 8
_MOST_TRACKED = 1 << 30
"""Maximum bytes of device memory to check for races between blocks. The check takes eight times as much memory."""
_BUFFER = re.compile(r"\bb(\d+)\b")


class LaunchChecks:
    """Checks of all launches of a program. Each launch is checked for at most `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._launches: dict[str, int] = {}
        self.results: dict[str, Checked] = {}
        """Results of the checks, keyed by the kernel's name."""

    def selects(self, launch: KernelLaunch) -> bool:
        """Count a launch, and return whether to check it."""
        with self._lock:
            count = self._launches[launch.entry] = self._launches.get(launch.entry, 0) + 1
            return count <= _MOST_LAUNCHES_PER_KERNEL

    def run(self, module: LoadedModule, launch: KernelLaunch, options: EmulationOptions, together: bool) -> None:
        """Run all blocks of a launch, and store the results of the checks. After the time limit, run without checks.

        Args:
            options: Options of the emulation without checks.
            together: Whether all blocks must run at the same time. If so, there is no time limit.

        Raises:
            EmulationError: The launch failed. The results include the reason.
        """
        function, blocks = inlined(module.module, launch.entry), prod(launch.grid)
        memory, notes = watched_memory(function, frozenset())
        if memory.global_races and sum(each.nbytes for each in launch.buffers.values()) > _MOST_TRACKED:
            memory = replace(memory, global_races=False)
            notes.append("races between blocks were not checked: the program has more than 1 GiB of device memory")
        most = blocks if together else min(blocks, _CHUNK)
        emulation = Emulation(module.module, launch, replace(options, most_blocks=most, checked=memory))
        order, size = emulation.whole_clusters(range(blocks)), len(emulation.whole_clusters([0]))
        chunk = max(most // size, 1) * size
        names = _buffer_names(module, function, launch)
        describer = Describer(short_name(launch.entry), function, module.lines, [], _file_of(module, function))
        start, ran = time.monotonic(), 0
        failed: EmulationError | None = None
        try:
            while ran < blocks and (together or time.monotonic() - start < self._seconds):
                emulation.run(order[ran : ran + chunk])
                ran = min(ran + chunk, blocks)
            if ran < blocks:
                Emulation(module.module, launch, options).run(order[ran:])
        except EmulationError as error:
            failed = error
        findings = [describer.of(raw) for raw in emulation.findings if not is_harmless(function, raw)]
        if failed is not None and (finding := describer.of_error(str(failed), list(launch.buffers))) is not None:
            findings.append(finding)
        self._add(launch.entry, findings, names, (ran, blocks), notes)
        if failed is not None:
            raise failed

    def refuse(self, entry: str, reason: str) -> None:
        name = short_name(entry)
        self._add(entry, [Finding("launch", name, reason.partition(": ")[2] or reason)], {}, (0, 0), [])

    def _add(
        self,
        entry: str,
        findings: list[Finding],
        names: Mapping[int, str],
        blocks: tuple[int, int],
        notes: list[str],
    ) -> None:
        def renamed(text: str) -> str:
            return _BUFFER.sub(lambda match: names.get(int(match[1]), f"allocation {match[1]}"), text)

        with self._lock:
            before = self.results.setdefault(short_name(entry), Checked((), Counts(), 0, 0))
            named = [replace(each, message=renamed(each.message), memory=renamed(each.memory)) for each in findings]
            self.results[short_name(entry)] = Checked(
                distinct([*before.findings, *named]),
                before.counts,
                before.blocks + blocks[0],
                before.of_blocks + blocks[1],
                tuple(dict.fromkeys((*before.notes, *notes))),
            )


def _file_of(module: LoadedModule, function: Function) -> str:
    place = module.lines.of(function.instructions[0].line)
    return Path(place.file).name if place is not None else ""


def _buffer_names(module: LoadedModule, function: Function, launch: KernelLaunch) -> dict[int, str]:
    """Name each buffer after the first kernel parameter that points to it. The keys are numbers of buffers."""
    place = module.lines.of(function.instructions[0].line)
    names: list[str] = []
    if place is not None and Path(place.file).is_file():
        try:
            declared = {each.name: each for each in signatures(read_text(Path(place.file), place.file))}
        except KernrecError:
            declared = {}
        if (signature := declared.get(short_name(launch.entry))) is not None:
            names = [parameter.name for parameter in signature.parameters]
    if len(names) != len(launch.arguments):
        names = [f"argument {number}" for number in range(1, len(launch.arguments) + 1)]
    pointers = [int.from_bytes(raw, "little") >> BUFFER_SHIFT for raw in launch.arguments]
    return {slot: name for slot, name in reversed(list(zip(pointers, names, strict=True))) if slot}
