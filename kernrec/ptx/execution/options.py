"""Options of an emulation."""

from collections.abc import Callable, Mapping, Sequence

from kernrec.ptx.ir.program import Function
from kernrec.util.light_dataclass import dataclass

Lowering = Callable[[Function], Sequence[Mapping[str, float]]]

BUDGET = 20_000_000


@dataclass(frozen=True)
class CheckedMemory:
    """Memory that `kernrec check` watches."""

    uninitialized: frozenset[str] = frozenset()
    """Buffers that nothing wrote before the launch."""
    shared: bool = True
    """Whether to check shared memory: reads of unwritten bytes, races, accesses beyond an array."""
    global_races: bool = True
    """Whether blocks must not share global memory that one of them writes."""


@dataclass(frozen=True)
class EmulationOptions:
    """Options for running thread blocks, and for watching them."""

    most_blocks: int = 1
    """Maximum number of thread blocks of one `Emulation.run`."""
    batch_lanes: int = 1024
    """Approximate number of threads that run together."""
    count: bool = True
    budget: int = BUDGET
    """Maximum number of PTX instructions of a batch of blocks before the kernel counts as an endless loop."""
    check_races: bool = False
    """Whether a data race is an error, in shared memory or in global memory that blocks hand over."""
    checked: CheckedMemory | None = None
    """Checks beyond fatal errors (`Emulation.findings`); None for none."""
    watched: Sequence[int] = ()
    """Linear numbers of blocks whose global memory accesses are recorded (`Emulation.accesses`). If there are any, the
    engine also counts `global.<buffer>.{read,write,atomic}_passes` (L1 clocks) and `global.<buffer>.atomic_turns`
    (turns of lanes in one sector). Both depend on where tiles start.
    """
    lanes_by_class: bool = False
    """Whether to count active lanes by instruction class."""
    lowering: Lowering | None = None
    """Function that returns the machine instructions of each basic block by class (`kernrec.ptx.analysis.lowering`),
    which `issue` and `lanes` count. None counts each PTX instruction separately (`kernrec.ptx.analysis.issue_cost`).
    """
