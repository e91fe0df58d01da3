"""Test the cache of emulated counts and its version."""

import json
import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernrec.compile.compiled import COUNTS, Compiled, Resources
from kernrec.compile.pool import Processors, processors_of
from kernrec.errors import KernrecError
from kernrec.kernel import Kernel
from kernrec.op import Problem
from kernrec.profile import emulation_cache
from kernrec.profile.emulation_cache import EmulationCache
from kernrec.profile.launch_profile import COUNTS_VERSION, LaunchProfile, Profile, ProfileFailure, ProfileTarget
from kernrec.profile.profile_user_kernel import _EmulationTasks, profile_configs
from kernrec.profile.sample_profile import sampled_counts
from kernrec.ptx import KernelLaunch, parse
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside

SOURCE = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2.0f; }'
SPEC = beside(__file__, "emulation_cache.toml")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    return written_kernel(tmp_path, SOURCE, SPEC)


def problem(kernel: Kernel) -> Problem:
    return kernel.definition.problem()


def code(registers: int, name: str = "twice") -> Compiled:
    resources = {name: Resources(registers, 0, 0, 0, 0)}
    return Compiled(".target sm_80\n.address_size 64\n", b"", resources, f"nvrtc for {registers}", "")


def profiles(compiled: Compiled) -> list[LaunchProfile]:
    counts = Profile(("issue", "issue.alu"), ("block", "rounds"), np.array([[0.1, 0.0], [1 / 3, 0.0]]))
    return [LaunchProfile(0, "twice", compiled.resources["twice"], counts, compiled.ptx_hash, compiled.compiler)]


def test_cached_counts_get_resources_of_the_requested_architecture(kernel):
    cache = EmulationCache(kernel, problem(kernel), 1000)
    cache.put(("ptx", "launch"), profiles(code(16)))
    restored = cache.get(("ptx", "launch"), code(40))
    assert isinstance(restored, list)
    assert restored[0].resources.registers == 40
    assert restored[0].compiler == "nvrtc for 40"
    np.testing.assert_array_equal(restored[0].profile.coefficients, profiles(code(16))[0].profile.coefficients)
    assert restored[0].profile.metrics == ("issue", "issue.alu")


def test_damaged_file_is_treated_as_missing(kernel, tmp_path):
    cache = EmulationCache(kernel, problem(kernel), 1000)
    cache.put(("ptx",), "it never ends")
    assert cache.get(("ptx",), code(16)) == "it never ends"
    (path,) = (tmp_path / "cache" / "emulated").rglob("*.z")
    path.write_bytes(path.read_bytes()[:-3])
    assert cache.get(("ptx",), code(16)) is None


@pytest.mark.parametrize(("counts", "emulated"), [("", 2), ("ptx", 1)])
def test_equal_ptx_with_other_machine_code_is_emulated_again(kernel, monkeypatch, counts, emulated):
    monkeypatch.setenv(COUNTS, counts)
    target, submitted = ProfileTarget(problem(kernel), 80), []

    def submit(_: Processors, *task: object) -> Future[tuple[int, list[LaunchProfile]]]:
        future: Future[tuple[int, list[LaunchProfile]]] = Future()
        future.set_result((1, profiles(code(16))))
        submitted.append(task)
        return future

    monkeypatch.setattr(Processors, "submit", submit)
    with processors_of(1) as processors:
        for cubin in (b"of ptxas 13.4", b"of ptxas 13.5"):
            tasks = _EmulationTasks(kernel, target, processors)
            outcomes = [*tasks.add({"threads": 64}, replace(code(16), cubin=cubin)), *tasks.collect()]
            assert not isinstance(outcomes[0], ProfileFailure)
    assert len(submitted) == emulated


@pytest.mark.parametrize("breaks", [True, False])
def test_error_of_a_waiting_task_is_raised(kernel, monkeypatch, breaks):
    started: list[Future[tuple[int, list[LaunchProfile]]]] = []

    def submit(*_: object) -> Future[tuple[int, list[LaunchProfile]]]:
        assert not started or not breaks, "Python 3.12 waits forever if a callback of a broken executor starts a task"
        if started:
            raise KernrecError("a new process died")
        started.append(Future())
        return started[0]

    monkeypatch.setattr(Processors, "submit", submit)
    with processors_of(1) as processors:
        tasks = _EmulationTasks(kernel, ProfileTarget(problem(kernel), 80), processors)
        for threads in (64, 128):
            assert not [*tasks.add({"threads": threads}, code(16))]
        if breaks:
            started[0].set_exception(BrokenProcessPool())
        else:
            started[0].set_result((1, profiles(code(16))))
        results = tasks.collect()
        assert breaks or next(results)[0] == [{"threads": 64}]  # type: ignore[index]
        with pytest.raises(KernrecError, match="process died"):
            next(results)


def test_other_architecture_is_compiled_but_not_emulated(kernel, monkeypatch):
    monkeypatch.setenv(COUNTS, "ptx")
    configs = [{"threads": 64}, {"threads": 128}]

    def counts(sm: int) -> dict[str, np.ndarray]:
        outcomes = list(profile_configs(kernel, configs, ProfileTarget(problem(kernel), sm), processors=1))
        assert not any(isinstance(outcome, ProfileFailure) for outcome in outcomes)
        rows = [row for outcome in outcomes for row in outcome[1]]  # type: ignore[index]
        assert {row.sm for row in rows} == {sm}
        return {row.variant_key: row.counts for row in rows}

    first = counts(80)
    assert len(first) == 2

    def no_more(*_: object) -> None:
        raise AssertionError("emulated again")

    monkeypatch.setattr(Processors, "submit", no_more)
    second = counts(86)
    for key, value in first.items():
        np.testing.assert_array_equal(second[key], value)


FOLDER = Path(__file__).with_name("counted")
PINNED = FOLDER / "counts.json"
KERNELS = ("tree", "bins", "again")

Counts = dict[str, dict[str, float]]


def counted() -> Counts:
    module = parse((FOLDER / "kernels.ptx").read_text())
    counts = {}
    for name in KERNELS:
        buffers = {"x": np.arange(1 << 16, dtype=np.float32), "y": np.zeros(1 << 16, np.float32)}
        launch = KernelLaunch(name, (64, 1, 1), (128, 1, 1), ("x", "y"), buffers)
        counts[name] = {m: float(f"{value:.6g}") for m, value in sorted(sampled_counts(module, launch).items())}
        del counts[name]["version"]
    return counts


def check(counts: Counts, version: int, pinned_version: int, pinned: Counts) -> None:
    changed = [
        f"{name} {metric}: {before.get(metric)} -> {now.get(metric)}"
        for name in {**pinned, **counts}
        for before, now in [(pinned.get(name, {}), counts.get(name, {}))]
        for metric in {**before, **now}
        if before.get(metric) != now.get(metric)
    ]
    if changed and version == pinned_version:
        pytest.fail("counts changed, so raise COUNTS_VERSION in kernrec/profile/launch_profile.py: " + changed[0])
    if version != pinned_version:
        pytest.fail(f"COUNTS_VERSION is {version}, but the pinned counts have version {pinned_version}: see docstring")


def test_emulator_counts_change_only_with_a_new_version():
    counts, document = counted(), json.loads(PINNED.read_text())
    if os.environ.get("KERNREC_UPDATE_COUNTS") and document["version"] < COUNTS_VERSION:
        document = {"version": COUNTS_VERSION, "counts": counts}
        PINNED.write_text(json.dumps(document, indent=1) + "\n")
    check(counts, COUNTS_VERSION, document["version"], document["counts"])


def test_changed_emulator_count_requires_a_new_version():
    document = json.loads(PINNED.read_text())
    pinned, version = document["counts"], document["version"]
    other = {name: dict(metrics) for name, metrics in pinned.items()}
    other["tree"]["shared.load_wavefronts"] += 1.0
    with pytest.raises(pytest.fail.Exception, match=r"raise COUNTS_VERSION.*shared\.load_wavefronts"):
        check(other, version, version, pinned)
    unpinned = {name: metrics for name, metrics in pinned.items() if name != "tree"}
    for counts, kernels in ((pinned, unpinned), (unpinned, pinned)):
        with pytest.raises(pytest.fail.Exception, match=r"raise COUNTS_VERSION.*: tree "):
            check(counts, version, version, kernels)
    with pytest.raises(pytest.fail.Exception, match="pinned counts have version"):
        check(other, version + 1, version, pinned)


def test_emulator_hash_depends_on_the_engine(monkeypatch):
    hash_now = emulation_cache.emulator_hash.__wrapped__
    before = hash_now()
    monkeypatch.setattr(emulation_cache, "module", lambda: emulation_cache)
    assert hash_now() != before
