"""Configs compiled and emulated on a real Ray cluster of this machine: the same rows, though nodes come and go.

Skips where Ray is not installed (`pip install '.[ray]'`).
"""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile import NoCompilerError
from kernrec.compile.nvrtc import compiler
from kernrec.gpu import find_gpu
from kernrec.kernel import load_kernel
from kernrec.recommender.analyze_kernel import Analysis, ProfilingOptions, analyze
from kernrec.recommender.profile_configs import Profiles, profiles_with
from kernrec.store import Database

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_worker_niceness": "0", "RAY_raylet_start_wait_time_s": "120"}
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield started
    finally:
        started.shutdown()


def analyzed(folder: Path, profiles: Profiles | None) -> tuple[Analysis, list[dict[str, object]]]:
    """The analysis of the guide's kernel, and the profiles in its database."""
    kernel = load_kernel(ROOT / "docs" / "examples" / "blur.toml")
    database = folder / "own.duckdb"
    options = ProfilingOptions(processes=1, profiles=profiles)
    analysis = analyze(kernel, kernel.definition.problem(), find_gpu("rtx4090"), database, None, options)
    with Database.open(database) as opened:
        return analysis, sorted(opened.rows("profile"), key=lambda row: str(row["profile_id"]))


@pytest.mark.slow
def test_two_nodes_of_which_one_dies_and_one_joins_late_make_the_rows_of_one_machine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernrec.cluster.ray_processors import RayProcessors

    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    dying = cluster.add_node(num_cpus=1)
    notes: list[str] = []
    # nodes are started by the main thread alone
    with RayProcessors(cluster.address, notes.append) as processors, ThreadPoolExecutor(1) as thread:
        result = thread.submit(analyzed, tmp_path / "far", profiles_with(processors))
        while not list((tmp_path / "cache" / "compile").rglob("*.z")) and not result.done():
            time.sleep(0.05)
        cluster.add_node(num_cpus=1)
        cluster.remove_node(dying)
        far, rows = result.result()
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "other"))
    here, own = analyzed(tmp_path / "here", None)
    assert rows == own
    assert notes == []
    shown = [[(c.config, c.latency_s, c.energy_j) for c in each.recommendation.choices] for each in (far, here)]
    assert shown[0] == shown[1]


@pytest.mark.slow
def test_where_the_only_node_dies_the_analysis_ends_with_one_line(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernrec.cluster import ray_processors
    from kernrec.errors import KernrecError

    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ray_processors, "_NO_NODE_S", 15.0)
    only = cluster.add_node(num_cpus=1)
    with ray_processors.RayProcessors(cluster.address, print) as processors:
        change = threading.Timer(2.0, lambda: cluster.remove_node(only))
        change.start()
        with pytest.raises(KernrecError, match=r"no node of the cluster answers for 15 s; what is done is kept"):
            analyzed(tmp_path, profiles_with(processors))
        change.join()
