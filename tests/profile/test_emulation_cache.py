"""Test the cache of emulated counts and its version."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from kernrec.kernel import Kernel, load_kernel
from kernrec.op import Problem
from kernrec.profile.emulation_cache import ErrorCache
from kernrec.profile.launch_profile import COUNTS_VERSION
from kernrec.profile.sample_profile import sampled_counts
from kernrec.ptx import KernelLaunch, parse
from tests.helpers.paths import beside

SOURCE = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2.0f; }'
SPEC = beside(__file__, "emulation_cache.toml")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.toml").write_text(SPEC)
    return load_kernel(tmp_path / "twice.toml")


def problem(kernel: Kernel) -> Problem:
    return kernel.definition.problem()


def test_error_is_cached_for_its_launch(kernel):
    cache = ErrorCache(kernel, problem(kernel), 1000)
    cache.put(("ptx", "launch"), "it never ends")
    assert cache.get(("ptx", "launch")) == "it never ends"
    assert cache.get(("ptx", "other")) is None
    assert ErrorCache(kernel, problem(kernel), 2000).get(("ptx", "launch")) is None


def test_damaged_file_is_treated_as_missing(kernel, tmp_path):
    cache = ErrorCache(kernel, problem(kernel), 1000)
    cache.put(("ptx",), "it never ends")
    (path,) = (tmp_path / "cache" / "emulated").rglob("*.txt")
    path.write_bytes(b"\xff")
    assert cache.get(("ptx",)) is None


FOLDER = Path(__file__).with_name("counted")
PINNED = FOLDER / "counts.json"
KERNELS = ("tree", "bins", "again")

Counts = dict[str, dict[str, float]]


def counted() -> Counts:
    """Return the counts of the pinned kernels by name, without the version."""
    module = parse((FOLDER / "kernels.ptx").read_text())
    counts = {}
    for name in KERNELS:
        buffers = {"x": np.arange(1 << 16, dtype=np.float32), "y": np.zeros(1 << 16, np.float32)}
        launch = KernelLaunch(name, (64, 1, 1), (128, 1, 1), ("x", "y"), buffers)
        counts[name] = {m: float(f"{value:.6g}") for m, value in sorted(sampled_counts(module, launch).items())}
        del counts[name]["version"]
    return counts


def check(counts: Counts, version: int, pinned_version: int, pinned: Counts) -> None:
    """Fail if counts differ from the pinned counts, and say what to do."""
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


def test_counts_change_only_with_their_version():
    counts, document = counted(), json.loads(PINNED.read_text())
    if os.environ.get("KERNREC_UPDATE_COUNTS") and document["version"] < COUNTS_VERSION:
        document = {"version": COUNTS_VERSION, "counts": counts}
        PINNED.write_text(json.dumps(document, indent=1) + "\n")
    check(counts, COUNTS_VERSION, document["version"], document["counts"])


def test_changed_count_fails_unless_the_version_is_raised():
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
