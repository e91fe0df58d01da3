"""Fixtures for a Ray cluster on this machine. The head node has no cores or GPUs. Tests are skipped without Ray."""

import pytest

from kernrec.cluster import driver


@pytest.fixture
def gpus_here(measured_here, monkeypatch):
    """Measure in this process, and let the driver detect new machines at once."""
    monkeypatch.setattr(driver, "_LOOK_S", 0.0)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory):
    """Start one Ray cluster for all tests, because starting takes longer than the tests."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        patch.setenv("RAY_health_check_initial_delay_ms", "500")
        patch.setenv("RAY_health_check_period_ms", "200")  # 5 failed checks (1 s) mark a node dead
        patch.setenv("KERNREC_STATE", str(tmp_path_factory.mktemp("state")))
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            yield started
        finally:
            started.shutdown()


@pytest.fixture
def cluster(ray_cluster):
    yield ray_cluster
    for node in list(ray_cluster.worker_nodes):
        ray_cluster.remove_node(node, allow_graceful=False)
