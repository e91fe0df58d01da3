"""Return a network on a GPU for the page: totals, the recommendation per layer, and all power limits."""

from collections.abc import Sequence
from typing import Any

from kernrec.gpu import GPU
from kernrec.model.prior.power import RANDOM
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.networks.network import NetworkRequest, answer_network
from kernrec.recommender.networks.sweep import sweep_network


def network_view(
    recommender: Recommender, gpu: GPU, wanted: NetworkRequest, inputs: str = RANDOM, backends: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the totals of a network at the default power limit, its layers, and its totals over power limits.

    Raises:
        UsageError: A name is unknown, or no layer belongs to the op.
        KernrecError: No layer can be run, or the network does not fit the GPU's memory.
    """
    answer = answer_network(recommender, gpu, wanted, Query(Objective.LATENCY, inputs=inputs, backends=tuple(backends)))
    sweep = sweep_network(recommender, answer, "power limit")
    layers = []
    for layer in answer.layers:
        kernel, config = layer.program
        layers.append(
            {
                "layer": layer.name,
                "count": layer.count,
                "problem": layer.answer.problem.key,
                "kernel": kernel,
                "config": config,
                "latency_s": layer.latency_s,
                "energy_j": layer.energy_j,
                "bottleneck": layer.best.bottleneck if layer.best and not layer.runs_backend else "",
                "source": layer.source,
                "worth_it": layer.worth_it,
            }
        )
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "workload": answer.workload.title,
        "power_limit_w": gpu.tdp_w,
        "dtypes": list(answer.dtypes),
        "headline": answer.headline_name,
        "totals": [total.as_dict() for total in answer.totals],
        "sweep": sweep.as_dict()["rows"],
        "layers": layers,
        "notes": list(answer.notes),
    }
