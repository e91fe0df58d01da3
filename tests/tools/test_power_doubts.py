"""Recorded power that contradicts the card or other rows is named and weighs less; everything else stays as it is."""

from dataclasses import replace

import numpy as np
import pytest
from evidence.recordings.power import Load
from evidence.recordings.power_doubts import DOUBTED, judged
from evidence.recordings.power_of_products import Products, agreement

SWEEP = [
    Load("FMA", "quadro-rtx-8000", mhz * 1e6, watts, {"issue.fma32": 1e11}, latency_s=1e-3, about="input 3")
    for mhz, watts in ((705, 120.0), (1110, 158.0), (1605, 249.0), (1710, 270.0))
]


def test_consistent_sweep_is_accepted():
    assert list(judged(SWEEP)) == SWEEP


def test_lower_power_at_a_higher_clock_is_reported():
    *others, last = judged([*SWEEP[:-1], replace(SWEEP[-1], power_w=109.0)])
    assert others == SWEEP[:-1]
    assert last.doubt == "less power at a higher clock"
    assert last.weight == DOUBTED


@pytest.mark.parametrize(("changes", "says"), [
    ({"clock_hz": 9e9}, "a clock that the card does not have"),
    ({"rates": {"dram.bytes": 2e12}}, "more bandwidth than the card has"),
    ({"rates": {"issue.fma32": 1e12}}, "more FMA than that clock allows"),
    ({"limit_w": 100.0}, "more power than the limit"),
])  # fmt: skip
def test_impossible_power_is_reported(changes, says):
    (load,) = judged([replace(SWEEP[0], **changes)])  # type: ignore[arg-type]
    assert load.doubt == says
    assert load.weight == DOUBTED


def test_matmul_with_less_power_than_its_equally_fast_neighbors_is_reported():
    shapes = np.array([[m, 4096, 4096] for m in (64, 65, 66, 67, 1024)])
    watts = np.array([600.0, 605.0, 300.0, 598.0, 350.0])
    these = Products("b200_sxm", "VLLM", "bfloat16", shapes, np.full(5, 1e-4), watts, np.full(5, 1000.0))
    weight, misread = agreement(these)
    assert misread.tolist() == [False, False, True, False, False]
    assert weight[2] < 0.1
    assert weight[0] > 0.9
    assert weight[4] == 1.0  # no neighbor of about its size
