"""Options of an emulation."""

from collections.abc import Callable, Mapping, Sequence

from kernrec.ptx.ir.program import Function
from kernrec.util.light_dataclass import dataclass

Lowering = Callable[[Function], Sequence[Mapping[str, int]]]

BUDGET = 20_000_000


@dataclass(frozen=True)
class CheckedMemory:
    """The memory that `kernrec check` watches."""

    uninitialized: frozenset[str] = frozenset()
    """Buffers that nobody wrote before the launch."""
    shared: bool = True
    """Whether shared memory is watched: reads of unwritten bytes, races, accesses past an array."""
    global_races: bool = True
    """Whether blocks must not share what one of them writes."""


@dataclass(frozen=True)
class EmulationOptions:
    """How thread blocks are run, and what is watched while they run."""

    most_blocks: int = 1
    """The most thread blocks that one `Emulation.run` gets."""

    batch_lanes: int = 1024
    """Threads that run together, about."""

    count: bool = True
    budget: int = BUDGET
    """PTX instructions that one batch of blocks may execute before the kernel is taken for an endless loop."""

    check_races: bool = False
    """Whether a data race is an error: in shared memory, or in global memory that blocks hand over."""

    checked: CheckedMemory | None = None
    """What is checked beyond what ends a launch (`Emulation.findings`); None for nothing."""

    watched: Sequence[int] = ()
    """Linear numbers of blocks whose accesses to global memory are kept (`Emulation.accesses`). If there are any,
    `global.<buffer>.{read,write,atomic}_passes` (clocks of L1) and `global.<buffer>.atomic_turns` (of lanes in their
    sectors) are counted: how lines are cut depends on where tiles begin."""

    lanes_by_class: bool = False
    """Whether active lanes are also counted by class of instruction."""

    lowering: Lowering | None = None
    """Machine instructions by class of each basic block of a kernel, which `issue` and `lanes` count
    (`kernrec.ptx.analysis.lowering`); None: of each PTX instruction by itself (`kernrec.ptx.analysis.issue_cost`)."""
