"""What the bench of large spaces says of the configs that were left out, and of processor time."""

import time
from types import SimpleNamespace

import bench_large_space as bench
import pytest


def test_none_of_300_bounds_the_share_of_all_by_a_hundredth_to_the_power_of_one_in_300() -> None:
    assert bench.upper_bound(0, 300) == pytest.approx(1.0 - 0.01 ** (1 / 300))
    # 1 - (1 - p)^300 - 300 p (1 - p)^299 = 0.99 at p = 2.19 %
    assert bench.upper_bound(1, 300) == pytest.approx(0.0219, abs=2e-4)
    assert bench.upper_bound(3, 3) == pytest.approx(1.0)


def test_a_sample_counts_what_belongs_on_the_front_and_what_is_far_better(capsys: pytest.CaptureFixture[str]) -> None:
    tried = [((1,), (1.0, 4.0)), ((2,), (2.0, 2.0)), ((3,), (3.0, 3.0))]
    sample = [((4,), (2.5, 2.5)), ((5,), (1.97, 1.97)), ((6,), (1.5, 1.5)), ((7,), (0.99, 5.0))]
    timed = SimpleNamespace(done=[(None, {"x": key[0]}) for key, _ in tried])
    only = [{"x": key[0]} for key, _ in sample] + [{"x": 8}]  # the last one cannot run
    bench.judge_sample(timed, only, 100, dict(tried + sample))
    front, better = capsys.readouterr().out.splitlines()
    assert front.startswith("of 5 of the 100 left out 3 belong on the front: at 99% at most")
    assert better.startswith("of 5 of the 100 left out 1 are better than all of it by over 5%: at 99% at most")


def test_the_time_to_a_good_front_is_that_of_the_config_that_completes_it(capsys: pytest.CaptureFixture[str]) -> None:
    costs = {(1,): (1.0, 4.0), (2,): (2.0, 2.0), (3,): (1.03, 4.1), (4,): (9.0, 9.0)}
    order = [(4, 10.0), (3, 20.0), (2, 30.0), (1, 40.0)]
    timed = SimpleNamespace(done=[(bench.Spent(then, 0.0, then), {"x": key}) for key, then in order])
    assert bench.judge(timed, costs, 2) == 0
    lines = capsys.readouterr().out.splitlines()
    within = next(line for line in lines if line.startswith("within 5%: "))
    assert within.startswith("within 5%: 3 configs, 30 s by the clock, 30 s of CPU (15 to 15 s if free)")
    assert lines[-1].startswith("at the end 0.0% from it")
    timed.done = [(bench.Spent(then.clock_s + 600.0, 0.0, 0.0), config) for then, config in timed.done]
    assert bench.judge(timed, costs, 2) == 1


def test_processor_time_is_that_of_this_process_and_grows() -> None:
    before, end = bench.Spent.now(), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert bench.Spent.now().since(before).own_s >= 0.05
