"""A real Ray cluster of this machine, whose head node has neither cores nor GPUs; skips where Ray is not installed."""

import pytest

from kernrec.cluster import driver


@pytest.fixture
def cards_here(measured_here, monkeypatch):
    """Cards measure in this process, and it is seen at once that a machine came."""
    monkeypatch.setattr(driver, "_LOOK_S", 0.0)


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory):
    """One for all tests: starting it takes longer than they do."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        patch.setenv("RAY_health_check_initial_delay_ms", "500")
        patch.setenv("RAY_health_check_period_ms", "200")  # five of a node that was killed fail: it is dead after 1 s
        patch.setenv("KERNREC_STATE", str(tmp_path_factory.mktemp("state")))
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            yield started
        finally:
            started.shutdown()


@pytest.fixture
def cluster(ray_cluster):
    """Without the nodes that other tests added."""
    yield ray_cluster
    for node in list(ray_cluster.worker_nodes):
        ray_cluster.remove_node(node, allow_graceful=False)
