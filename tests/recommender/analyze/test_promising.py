"""Test that only promising configs of a large space are profiled, and that the answer stays the same."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from kernrec.compile.pool import Processors
from kernrec.gpu import find_gpu
from kernrec.kernel import Config, Kernel
from kernrec.model.search import partial_space
from kernrec.profile.launch_profile import VERSION, ProfileFailure, ProfileTarget
from kernrec.profile.profile_user_kernel import Outcome, profile_configs
from kernrec.recommender import Answer, Objective, Query
from kernrec.recommender.analyze import kernel as analysis
from kernrec.recommender.analyze import profile_configs as profiling
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside

GPU = find_gpu("rtx4090")
SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = (blockIdx.x * THREADS + threadIdx.x) * (1 + (TILE + UNROLL + FLAG) / 1000);
    if (i < n) y[i] = 2.0f * x[i];
}
"""


class Profiles:
    """Profiles derived from a real profile: configs farther from the best do more work, and some configs fail."""

    def __init__(self) -> None:
        self.made: list[Config] = []
        self.processors: list[object] = []
        self._row: Outcome | None = None

    def __call__(
        self, kernel: Kernel, configs: Sequence[Config], target: ProfileTarget, processors: object
    ) -> Iterator[Outcome]:
        self.made += configs
        self.processors.append(processors)
        if self._row is None:
            (self._row,) = profile_configs(kernel, configs[:1], target, 1)
        assert not isinstance(self._row, ProfileFailure)
        _, (row,) = self._row
        for config in configs:
            if config["tile"] * config["unroll"] > 400:
                yield ProfileFailure(config, "too much shared memory")
                continue
            far = (math.log2(config["tile"]) - 3) ** 2 + 0.2 * (config["unroll"] - 6) ** 2 + config["flag"]
            key = kernel.sample_keys([[config[t.name] for t in kernel.tunables]], target.problem.key)[0]
            variant = {**config, "problem": target.problem.key}
            counts, version = row.counts * (40.0 + 20.0 * far), list(row.metrics).index(VERSION)
            counts[version] = row.counts[version]
            yield [config], [replace(row, variant_key=key, variant=variant, counts=counts)]


@pytest.fixture
def kernel(nvrtc, tmp_path):
    return written_kernel(tmp_path, SOURCE, beside(__file__, "promising.toml"))


def test_partial_profiling_gives_the_same_answer_as_profiling_all(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "LARGE", 200)
    monkeypatch.setattr(partial_space, "_TREES", 16)
    problem, query = kernel.definition.problem(), Query(Objective.LATENCY)
    profiles, seen, fronts = Profiles(), list[tuple[int, int]](), list[tuple[Answer, int]]()
    monkeypatch.setattr(profiling, "outcomes_of", profiles)
    options = ProfilingOptions(
        progress=lambda done, most: seen.append((done, most)),
        first_front=lambda answer, count: fronts.append((answer, count)),
    )
    part = analyze(kernel, problem, GPU, tmp_path / "part.duckdb", query, options)
    assert part.left_out > 0
    assert part.profiled + len(part.failed) + part.left_out == 210
    assert len(profiles.made) == len({tuple(config.values()) for config in profiles.made}) == 210 - part.left_out
    ((first, count),) = fronts
    assert count == 100
    assert first.recommendations
    assert seen[0] == (1, 0), "how many there will be is not known while configs are drawn"
    assert all(done <= most for done, most in seen[100:])

    whole = analyze(kernel, problem, GPU, tmp_path / "whole.duckdb", query, replace(options, whole=True))
    assert whole.left_out == 0
    assert whole.answer.recommendations[0].config == part.answer.recommendations[0].config

    again = analyze(kernel, problem, GPU, tmp_path / "part.duckdb", query)
    assert again.cached == part.profiled
    assert again.answer.recommendations[0].config == part.answer.recommendations[0].config


def test_analysis_of_a_large_space_starts_processes_once(kernel, tmp_path, monkeypatch):
    profiles = Profiles()
    monkeypatch.setattr(analysis, "LARGE", 200)
    monkeypatch.setattr(partial_space, "_TREES", 16)
    monkeypatch.setattr(profiling, "outcomes_of", profiles)
    analyze(kernel, kernel.definition.problem(), GPU, tmp_path / "part.duckdb")
    assert len(profiles.made) > 100, "more than the first part"
    (processors,) = set(profiles.processors)
    assert isinstance(processors, Processors)
