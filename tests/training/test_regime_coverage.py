"""Coverage of the prior's intervals by what bounds a config: a common error leaves ratios alone, own errors do not."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from kernrec.model.prior.spread import REGIMES, SPREADS
from kernrec.training.evaluate_models import regime_coverage


def problem(factors: list[float], regimes: list[int], kernel: str = "smooth", joules: list[float] | None = None) -> Any:
    """Measured over predicted times, and energies where they were measured."""
    predicted_s = np.linspace(1e-3, 2e-3, len(factors))
    measured = {"latency": predicted_s * factors, "energy": predicted_s * (joules or [np.nan] * len(factors))}
    return SimpleNamespace(
        measured=measured.__getitem__,
        predicted={"prior": {"latency": predicted_s, "energy": predicted_s}},
        kernel=[kernel] * len(factors),
        regime=np.array(regimes),
    )


def test_common_error_misses_the_time_interval_but_not_the_ratio_interval():
    (row,) = regime_coverage([problem([2.0] * 4, [0] * 4)])
    assert (row.regime, row.configs, row.pairs) == (REGIMES[0], 4, 6)
    assert (row.time, row.ratio) == (0.0, 1.0)
    assert (row.time_factor, row.ratio_factor) == (SPREADS[0].time, SPREADS[0].ratio)
    assert row.energies == 0
    assert np.isnan([row.energy, row.energy_ratio]).all()


def test_each_regime_has_a_row_and_pairs_stay_within_a_kernel():
    problems = [problem([1.0, 1.0, 3.0], [0, 1, 1]), problem([1.0], [1], kernel="other")]
    core, dram = regime_coverage(problems)
    assert (core.configs, core.pairs, core.time) == (1, 0, 1.0)
    assert np.isnan(core.ratio)
    assert (dram.configs, dram.pairs, dram.ratio) == (3, 1, 0.0)
    assert dram.time == 2 / 3
