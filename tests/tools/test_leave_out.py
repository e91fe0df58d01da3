"""The prior's fitted constants, fitted again without a kernel or a card."""

import re
from dataclasses import dataclass

import leave_out
import numpy as np
import pytest

from kernrec.gpu import GPU, find_gpu
from kernrec.model.prior import demand, launch_time

ISSUE = ("demand", "ISSUE_PER_CLK")


@dataclass(frozen=True)
class Synthetic:
    """A space whose times follow the issue rate `truth`, as the prior computes them with its own."""

    set: str
    card: str
    truth: float

    @property
    def gpu(self) -> GPU:
        return find_gpu(self.card)

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        work = np.arange(1.0, 21.0)
        return work / self.truth, work / demand.ISSUE_PER_CLK


def test_the_prior_s_own_constants_are_on_the_grid_and_come_back() -> None:
    before = demand.ISSUE_PER_CLK, launch_time._START_CLK
    own = {key: leave_out._current(key) for key in leave_out.CONSTANTS}
    assert own in leave_out.grid()
    with leave_out.constants({ISSUE: 1.0, ("launch_time", "_START_CLK"): 2.0}):
        assert (demand.ISSUE_PER_CLK, launch_time._START_CLK) == (1.0, 2.0)
    assert before == (demand.ISSUE_PER_CLK, launch_time._START_CLK)


def test_what_is_left_out_is_predicted_with_what_the_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    own = demand.ISSUE_PER_CLK
    slow = own / 2
    monkeypatch.setattr(leave_out, "CONSTANTS", {ISSUE: (slow, own)})
    samples = [
        Synthetic("gemm", "rtx3090", own),
        Synthetic("pnpoly", "rtx3090", slow),
        Synthetic("pnpoly", "a100", slow),
    ]
    lines = list(leave_out.left_out(samples))
    gemm = next(line for line in lines if line.startswith("gemm"))
    # The prior's constants are right for it; without gemm, or without its card, those of point in polygon are taken.
    assert re.findall(r"[0-9.]+%", gemm) == ["0.0%", "100.0%", "100.0%"]
    on_a100 = next(line for line in lines if line.startswith("pnpoly        a100"))
    assert re.findall(r"[0-9.]+%", on_a100)[:2] == ["50.0%", "50.0%"]  # without point in polygon gemm alone decides
    assert any(line.startswith("constants without a kernel:") for line in lines)
