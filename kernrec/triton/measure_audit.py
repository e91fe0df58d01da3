"""Measure the engine's default and the best few configs for an audit's missing files on this machine's GPU.

An engine's tuner takes hours; this takes minutes, because it measures only the default and the best three configs for
each matmul and number of tokens. The rows go into the user's database, where the next audit finds them.
"""

from collections.abc import Callable

from kernrec.profile.triton_call import kernel_of_triton
from kernrec.recommender.serving.audit import ServingAudit
from kernrec.recommender.serving.compared import Comparison
from kernrec.recommender.serving.engine_calls import Step, calls
from kernrec.recommender.serving.engine_defaults import Tiles, launched, stated_tiles
from kernrec.recommender.serving.engines import TunedFile
from kernrec.recommender.serving.verdict import Verdict, worth
from kernrec.triton.machine import Machine
from kernrec.triton.measure_calls import Benchmark, Tensors, measure_call

TOP = 3
"""Number of configs to measure besides the engine's default."""


def measure_audit(
    audit: ServingAudit,
    machine: Machine,
    progress: Callable[[str], None] | None = None,
    tensors: Tensors | None = None,
    benchmark: Benchmark | None = None,
) -> int:
    """Measure the best configs where they may save time, and store the results.

    Args:
        audit: Audit with comparisons.
        machine: GPU of this process, which must be the audit's.
        progress: Called before each number of tokens.
        tensors, benchmark: As in `measure_call`.

    Returns:
        number of measured launches.

    Raises:
        KernrecError: torch is not installed.
    """
    count = 0
    for audited in audit.files:
        for made in audited.comparisons:
            if worth(made) is Verdict.LEAVE or made.best_cost.measured:
                continue
            if progress is not None:
                progress(f"{audited.file.name}: {made.tokens} tokens measured")
            count += _measure(audit, audited.file, made, machine, tensors, benchmark)
    return count


def _measure(
    audit: ServingAudit,
    file: TunedFile,
    made: Comparison,
    machine: Machine,
    tensors: Tensors | None,
    benchmark: Benchmark | None,
) -> int:
    engine, count = audit.served.engine, 0
    launches = [launched(engine, file, config) for config in (*(c for c, _ in made.ranked[:TOP]), made.own)]
    for product in range(file.launches):
        step = Step(file, audit.served, made.tokens, product)
        wanted = [_tiles(stated_tiles(tiles, step.rows)) for tiles in launches]
        # Use all configs of the call, because a row belongs to the kernel with exactly this list.
        for call, _ in calls(step, made.compared):
            chosen = [config for config in call.configs or () if _tiles(config) in wanted]
            if chosen:
                kernel, _ = kernel_of_triton(call)
                count += len(measure_call(call, kernel, chosen, machine, tensors, benchmark))
    return count


def _tiles(config: Tiles) -> tuple[int, ...]:
    names = [*(f"BLOCK_SIZE_{axis}" for axis in "MNK"), "GROUP_SIZE_M", "num_warps", "num_stages"]
    return tuple(config.get(name, 0) for name in names)
