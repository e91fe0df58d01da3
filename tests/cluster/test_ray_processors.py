"""Test that a Ray cluster on this machine compiles and emulates configs with the same rows, though nodes come and go.

The tests skip if Ray is not installed (`pip install '.[ray]'`).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernrec.cluster import ray_processors
from kernrec.cluster.ray_processors import RayProcessors
from kernrec.compile.pool import ProcessorsLostError
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.kernel import load_kernel
from kernrec.recommender.analyze.kernel import Analysis, analyze
from kernrec.recommender.analyze.profile_configs import Profiles, ProfilingOptions, profiles_with
from kernrec.store import Database

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nvrtc")]


@pytest.fixture
def impatient(monkeypatch):
    """Check for nodes every 0.2 s, and give up after one second without nodes."""
    monkeypatch.setattr(ray_processors, "_LOOK_S", 0.2)
    monkeypatch.setattr(ray_processors, "_NO_NODE_S", 1.0)


def analyzed(folder: Path, profiles: Profiles | None) -> tuple[Analysis, list[dict[str, object]]]:
    """Analyze the guide's kernel; return the analysis and the profiles in its database."""
    kernel = load_kernel(ROOT / "docs" / "examples" / "blur.toml")
    database = folder / "own.duckdb"
    options = ProfilingOptions(processes=1, profiles=profiles)
    analysis = analyze(kernel, kernel.definition.problem(), find_gpu("rtx4090"), database, None, options)
    with Database.open(database) as opened:
        return analysis, sorted(opened.rows("profile"), key=lambda row: str(row["profile_id"]))


@pytest.mark.deep
def test_two_nodes_produce_the_rows_of_one_machine_despite_failure_and_late_start(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    dying = cluster.add_node(num_cpus=1)
    # only the main thread may start nodes
    with RayProcessors(cluster.address) as processors, ThreadPoolExecutor(1) as thread:
        result = thread.submit(analyzed, tmp_path / "far", profiles_with(processors))
        while not list((tmp_path / "cache" / "compile").rglob("*.z")) and not result.done():
            time.sleep(0.05)
        cluster.add_node(num_cpus=1)
        cluster.remove_node(dying)
        far, rows = result.result()
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "other"))
    here, own = analyzed(tmp_path / "here", None)
    assert rows == own
    shown = [[(c.config, c.latency_s, c.energy_j) for c in each.answer.recommendations] for each in (far, here)]
    assert shown[0] == shown[1]


@pytest.mark.every(3)
@pytest.mark.usefixtures("impatient")
def test_analysis_without_nodes_ends_with_one_line(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    only = cluster.add_node(num_cpus=1)
    with RayProcessors(cluster.address) as processors, ThreadPoolExecutor(1) as thread:
        result = thread.submit(analyzed, tmp_path, profiles_with(processors))
        while not list((tmp_path / "cache" / "compile").rglob("*.z")):  # until the first config is compiled
            time.sleep(0.05)
        cluster.remove_node(only, allow_graceful=False)
        with pytest.raises(KernrecError, match=r"no node of the cluster answers for 1 s; finished work is kept"):
            result.result()


@pytest.mark.every(3)
@pytest.mark.usefixtures("impatient")
def test_node_with_another_kernrec_version_ends_the_analysis_with_one_line(cluster, monkeypatch):
    monkeypatch.setattr(ray_processors, "sources_hash", lambda: "another")
    cluster.add_node(num_cpus=1)
    with (
        RayProcessors(cluster.address) as processors,
        pytest.raises(ProcessorsLostError, match=r"the kernrec of .* is .*, here it is another; update that node"),
    ):
        processors.submit(len, ()).result()
