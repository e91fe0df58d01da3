"""Test that, on a GPU without recordings, corrections respect the time of arithmetic and compulsory traffic."""

from dataclasses import replace

import numpy as np

from kernrec.model.learn.lower_bound import bounded, least_log_ratio, least_seconds
from kernrec.model.prior.demand import PIPES
from tests.helpers.simulated_groups import simulated_inputs


def test_bound_is_the_slower_of_busiest_pipe_and_compulsory_bytes():
    inputs = replace(simulated_inputs(50, 1), bytes=1.0, fixed_s=None)
    assert inputs.pipe_s is not None
    arithmetic = inputs.pipe_s[[PIPES.index(name) for name in ("fma", "f64", "tensor")]].max(axis=0)
    assert np.allclose(least_seconds(inputs), arithmetic)
    streaming = replace(inputs, bytes=1e12)
    assert np.allclose(least_seconds(streaming), 1e12 / inputs.gpu.memory_bandwidth)
    assert np.allclose(least_seconds(replace(streaming, pipe_s=None)), 1e12 / inputs.gpu.memory_bandwidth)


def test_no_correction_makes_the_launch_itself_faster():
    inputs = replace(simulated_inputs(50, 1), bytes=1.0, pipe_s=None)
    assert inputs.fixed_s is not None
    assert (least_seconds(inputs) >= inputs.fixed_s).all()


def test_power_limit_lowers_the_clock_of_the_bound():
    inputs = replace(simulated_inputs(50, 1), bytes=1.0, fixed_s=None)
    halved = replace(inputs, clock_hz=np.full(50, 0.5 * inputs.gpu.boost_clock_hz))
    assert np.allclose(least_seconds(halved), 2.0 * least_seconds(inputs))


def test_correction_is_raised_to_the_bound_and_otherwise_unchanged():
    least = least_log_ratio(simulated_inputs(50, 1))
    assert (bounded(least - 1.0, least) >= least).all()
    assert np.abs(bounded(least + 0.5, least) - (least + 0.5)).max() < 1e-4
    assert (bounded(least, least) - least).max() < 0.05
