"""Test, without Triton, that measurements of a config are combined over runs, and that a drop-in is checked."""

import math

import pytest

import kernrec.triton
from kernrec.recommender.request import Objective
from kernrec.store.measurement import EnergyReport
from kernrec.triton.records import Result, middle

FAILED = Result(error="Triton could not launch it")


def ran(latency_s: float, energy_j: float | None = None) -> Result:
    return Result(latency_s, EnergyReport(energy_j=energy_j))


def test_median_uses_successful_runs_only():
    assert middle([ran(1.0), FAILED, ran(9.0), ran(2.0)], Objective.LATENCY) == 2.0
    assert middle([FAILED, FAILED], Objective.LATENCY) == math.inf


def test_impossible_values_are_refused_at_the_decorator(refuses):
    refuses(lambda: kernrec.triton.prune(top_k=True))
    refuses(lambda: kernrec.triton.autotune([], ["n"], objective="pareto"))


def test_removed_recorder_names_its_replacement():
    with pytest.raises(AttributeError, match="TRITON_CACHE_AUTOTUNING"):
        kernrec.triton.record  # noqa: B018
