"""`kernrec doctor --cluster`: what each node of a Ray cluster can measure, found by trying on each."""

import json
import socket
from dataclasses import dataclass
from typing import Any

from kernrec import paths
from kernrec.cluster.ray_cluster import connect, on_node
from kernrec.cluster.versions import sources_hash

_NODE_S = 180.0
"""How long a node may take: a probe takes ten seconds for each card."""


@dataclass(frozen=True)
class NodeDiagnosis:
    """One node of a cluster."""

    node: str
    """Name of the machine, or Ray's address of one that did not answer."""
    sources: str | None
    """Version and hash of its kernrec; None where there is no answer."""
    declared: int
    """GPUs that Ray knows of there."""
    diagnosis: dict[str, Any]
    """As `kernrec doctor --json` on the node; empty where there is no answer."""
    problem: str | None
    """Why its cards take no part in a campaign of this machine, in one line; None: they do, as far as they can."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def offer() -> str:
    """The diagnosis of this machine, as JSON text; runs on each node."""
    from kernrec.measure.doctor import diagnose

    diagnosis = diagnose(paths.user_database()).as_dict()
    return json.dumps({"node": socket.gethostname(), "sources": sources_hash(), "diagnosis": diagnosis})


def diagnose_cluster(address: str) -> list[NodeDiagnosis]:
    """Ask every node that lives. Raises as `ray_cluster.connect`."""
    ray = connect(address)
    try:
        pending = []
        for node in (node for node in ray.nodes() if node["Alive"]):
            task = ray.remote(offer).options(num_cpus=0, scheduling_strategy=on_node(node["NodeID"]), max_retries=0)
            pending.append((node, task.remote()))
        return [_diagnosis(ray, node, answer) for node, answer in pending]
    finally:
        ray.shutdown()


def _diagnosis(ray: Any, node: dict[str, Any], answer: Any) -> NodeDiagnosis:
    declared = int(node["Resources"].get("GPU", 0))
    try:
        values = json.loads(ray.get(answer, timeout=_NODE_S))
    except Exception as error:  # kernrec is not installed there, say
        reason = " ".join(str(error).split())[-160:]
        return NodeDiagnosis(str(node["NodeManagerAddress"]), None, declared, {}, f"it does not answer: {reason}")
    problem = None
    if values["sources"] != sources_hash():
        problem = f"its kernrec ({values['sources']}) is not this machine's ({sources_hash()})"
    elif not declared and values["diagnosis"]["cards"]:
        problem = "Ray knows of none of its GPUs: start its node with --num-gpus"
    return NodeDiagnosis(values["node"], values["sources"], declared, values["diagnosis"], problem)
