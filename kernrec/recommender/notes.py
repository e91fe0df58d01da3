"""What the reader of a recommendation has to know besides its numbers, one line each."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kernrec.kernel import config_text
from kernrec.recommender.candidate_set import Group
from kernrec.recommender.estimate.estimates import Rescaling
from kernrec.recommender.estimate.measured_rows import Known
from kernrec.recommender.result import Choice
from kernrec.store import MeasuredAnswer

if TYPE_CHECKING:
    from kernrec.model.prior.calibration import Calibration
    from kernrec.recommender.estimate.correction import Reach

PRIOR_NOTE = "source prior: predicted from static analysis, measured on no GPU; the interval is the model's spread"


def sources_of(choices: Iterable[Choice]) -> set[str]:
    """Where the costs of choices come from."""
    return {cost.source for choice in choices for cost in (choice.latency_s, choice.energy_j)}


def notes(
    groups: Iterable[Group], choices: Sequence[Choice], fastest_s: float, foreign: Sequence[MeasuredAnswer]
) -> tuple[str, ...]:
    """The notes of an answer: groups of all kernels, its choices, the least latency of all, other kernels' answers."""
    groups, sources = list(groups), sources_of(choices)
    runnable = [group for group in groups if group.runnable]
    found = of_predictions(sources, [(group.candidates.calibration, group.learned) for group in runnable])
    for group in groups:
        found += _of_group(group, rescaled=bool(sources - {"measured"}))
    if foreign and foreign[0].latency_s < fastest_s:
        found.append(_faster(foreign[0], fastest_s))
    return tuple(found)


def of_predictions(
    sources: Collection[str], predicted_by: "Iterable[tuple[Calibration | None, Reach | None]]"
) -> list[str]:
    """What predictions of these sources are, and of what calibration and model they come."""
    by = list(predicted_by)
    found = [PRIOR_NOTE] if "prior" in sources else []
    if "learned" in sources:
        found += dict.fromkeys(reach.said for _, reach in by if reach)
    if "prior" in sources or "learned" in sources:
        found += dict.fromkeys(f"the prior's coefficients: {one.summary}" for one, _ in by if one)
    return found


def _of_group(group: Group, rescaled: bool) -> Iterable[str]:
    name = group.candidates.kernel.name
    if group.candidates.unprofiled:
        yield (
            f"{name}: {group.candidates.unprofiled} codes have no profile for {group.candidates.gpu.arch}"
            " and were left out"
        )
    yield from of_known(name, group.known, group.rescaling if rescaled and group.runnable else None)


def of_known(name: str, known: Known, rescaling: Rescaling | None) -> Iterable[str]:
    """What measurements of a kernel were used for, and which were not. rescaling: of predictions that are shown."""
    if known.stale:
        yield f"{name}: {_configs(known.stale)} measured with another version of its source, not used"
    if known.elsewhere:
        yield f"{name}: {_configs(known.elsewhere)} measured at another power limit or clock, not used"
    if known.failures:
        by_outcome = ", ".join(f"{count} {outcome}" for outcome, count in sorted(known.failures.items()))
        yield f"{name}: {_configs(len(known.failed))} failed on this GPU and left out ({by_outcome})"
    if rescaling is not None:
        yield (
            f"{name}: predictions put on the scale of {_configs(rescaling.configs)} measured"
            f" (latency x {rescaling.latency:.3g}, power x {rescaling.power:.3g})"
        )


def _faster(row: MeasuredAnswer, fastest_s: float) -> str:
    config = config_text(row.config)
    how = "replayed from a recording" if row.replayed else "measured"
    return (
        f"{row.kernel}, which is not in kernrec's library, was {how} {fastest_s / row.latency_s:.2f} times as fast"
        f" as the fastest here: {row.latency_s * 1e6:.4g} us with {config}"
    )


def _configs(count: int) -> str:
    return f"{count} config" if count == 1 else f"{count} configs"
