"""Answer the page's requests. Parameters accept only known names, so that a URL cannot open a file."""

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.gpu import all_gpus, find_gpu
from kernrec.kernel import Kernel
from kernrec.model.analytical.power import INPUTS, RANDOM
from kernrec.op import all_ops
from kernrec.op.workload import Workload, workloads
from kernrec.page.front import (
    BEST,
    MOST_POINTS,
    PARAMETERS,
    Subject,
    config_text,
    front_answer,
    kernel_options,
    rounded,
    subject_of,
)
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.explain.breakdown import Explanation, explain
from kernrec.recommender.explain.report import advice, pick_config, tunables_of, what_if
from kernrec.recommender.networks.compare import sweep_network
from kernrec.recommender.networks.layers import NetworkRequest, layers_of
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.request import backends_named

Parameters = Mapping[str, str]

_MOST_TEXT = 400
_OF_FRONT = ("gpu", *PARAMETERS)


class Answers:
    """Answers to the page's requests.

    Args:
        workload: A network of the user, listed first.
        most_points: Maximum number of points per front.
        kernel: A kernel to list in addition to the kernels in the user's databases.
        backend: Backends for the totals of networks. None selects all backends.
    """

    def __init__(
        self,
        recommender: Recommender,
        workload: Workload | None = None,
        most_points: int = MOST_POINTS,
        kernel: Kernel | None = None,
        backend: Sequence[str] | None = None,
    ) -> None:
        self._stacks, self._whose = backends_named(backend)
        self._recommender, self._kernel = recommender, kernel
        self._most_points = most_points
        self._own = {workload.name: workload} if workload else {}
        self._lock = threading.Lock()
        self.paths: dict[str, tuple[tuple[str, ...], Callable[[Parameters], Any]]] = {
            "front": (_OF_FRONT, self._front),
            "explain": ((*_OF_FRONT, "config", "power_limit_w", "clock_hz"), self._explain),
            "network": (("gpu", "workload", "dtype", "inputs"), self._network),
        }
        """Accepted parameters and method for each request, keyed by path."""

    def answer(self, path: str, parameters: Parameters) -> Any:
        """Return the answer to a request as plain values.

        Raises:
            UsageError: A parameter is unknown or invalid.
            KernrecError: There is no answer, for example because no kernel runs the problem.
            LookupError: The path is unknown.
        """
        accepted, method = self.paths[path]
        for name, value in parameters.items():
            if name not in accepted:
                raise unknown("parameter", name, accepted)
            if len(value) > _MOST_TEXT or not value.isprintable():
                raise UsageError(f"{name} is longer than {_MOST_TEXT} letters, or has control characters")
        with self._lock:
            return method(parameters)

    def options(self) -> dict[str, Any]:
        """Return the names that the page offers: operators (with example layers), kernels, GPUs and networks."""
        ops = []
        for op in all_ops():
            _, layers = layers_of(NetworkRequest(None, op.name))
            ops.append(
                {
                    "name": op.name,
                    "title": op.title,
                    "dtypes": list(op.dtypes),
                    "layouts": [BEST, *op.layouts] if len(op.layouts) > 1 else list(op.layouts),
                    "dims": [{"name": d.name, "meaning": d.meaning, "default": d.default} for d in op.dims],
                    "layers": [
                        {"name": layer.name, **Subject(layer.problem, layout_free=layer.layout_free).parameters}
                        for layer in layers
                    ],
                }
            )
        return {
            "ops": ops,
            "kernels": kernel_options(self._recommender, self._kernel),
            "gpus": [{"name": gpu.name, "title": gpu.title} for gpu in all_gpus()],
            "workloads": [*self._own, *workloads()],
            "inputs": list(INPUTS),
        }

    def _front(self, parameters: Parameters) -> dict[str, Any]:
        if parameters.get("op") and parameters.get("kernel"):
            raise UsageError("an op and a kernel are both given; give only one")
        subject, gpu = subject_of(self._recommender, parameters), find_gpu(parameters.get("gpu", ""))
        return front_answer(self._recommender, subject, gpu, self._most_points)

    def _explain(self, parameters: Parameters) -> dict[str, Any]:
        subject, gpu = subject_of(self._recommender, parameters), find_gpu(parameters.get("gpu", ""))
        candidates = subject.candidates(self._recommender, gpu)
        names = [kernel.table.kernel.name for kernel in candidates.kernels]
        if (name := parameters.get("kernel", "")) not in names:
            raise unknown("kernel", name, names)
        wanted = _number(parameters, "power_limit_w") or gpu.tdp_w, _number(parameters, "clock_hz")
        points = [(each.limit_w(gpu), each.clock_hz) for each in candidates.points]
        if wanted not in points:
            raise UsageError(
                "no operating point has this power limit and clock; give the values of a point on a Pareto front"
            )
        # Predict all kernels before selecting one, because other kernels affect the predicted costs of a config.
        of_kernel, point = candidates.only(names.index(name)), points.index(wanted)
        position = pick_config(of_kernel, tunables_of("config", parameters.get("config")), Objective.ENERGY, point)
        explanation = explain(of_kernel, position, point)
        changes = what_if(of_kernel, position, point, Objective.ENERGY, 3)
        shown = shortened(explanation.as_dict()) | {"what_to_do": advice(explanation, changes, Objective.ENERGY)}
        return shown | {"commands": commands(explanation, subject)}

    def _network(self, parameters: Parameters) -> dict[str, Any]:
        name = parameters.get("workload", "")
        names = [*self._own, *workloads()]
        if name not in names:  # Accept names only, because a URL must not open a file.
            raise unknown("workload", name, names)
        wanted = NetworkRequest(self._own.get(name, name), None, parameters.get("dtype") or None, backend=self._whose)
        gpu, inputs = find_gpu(parameters.get("gpu", "")), parameters.get("inputs") or RANDOM
        query = Query(Objective.LATENCY, inputs=inputs, backends=tuple(self._stacks))
        answer = answer_network(self._recommender, gpu, wanted, query)
        layers = [
            {
                "layer": layer.name,
                "count": layer.count,
                "problem": layer.answer.problem.key,
                "kernel": layer.program[0],
                "config": layer.program[1],
                "latency_s": layer.latency_s,
                "energy_j": layer.energy_j,
                "bottleneck": layer.best.bottleneck if layer.best and not layer.runs_backend else "",
                "source": layer.source,
                "worth_it": layer.worth_it,
            }
            for layer in answer.layers
        ]
        return {
            "gpu": gpu.name,
            "title": gpu.title,
            "workload": answer.workload.title,
            "power_limit_w": gpu.tdp_w,
            "dtypes": list(answer.dtypes),
            "headline": answer.headline_name,
            "totals": [total.as_dict() for total in answer.totals],
            "sweep": sweep_network(self._recommender, answer, "power limit").as_dict()["rows"],
            "layers": layers,
            "notes": list(answer.notes),
        }


_SHOWN = (
    "kernel config power_limit_w locked_clock_hz latency_s latency_interval_s energy_j energy_interval_j power_w"
    " clock_hz source energy_source bottleneck measured_at device energy_by_part_j roofline"
)
_SHOWN_OF_LAUNCH = "entry blocks threads occupancy capped_by waves time_s"


def shortened(explained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an explanation that the page shows."""
    launches = [{name: launch[name] for name in _SHOWN_OF_LAUNCH.split()} for launch in explained["launch_details"]]
    shown: dict[str, Any] = rounded({name: explained[name] for name in _SHOWN.split()} | {"launch_details": launches})
    return shown


def commands(explanation: Explanation, subject: Subject) -> dict[str, str]:
    """Return shell commands that show more about a config, keyed by subcommand (`recommend` or `explain`)."""
    recommendation = explanation.recommendation
    problem, point = recommendation.problem, recommendation.point
    about = ["--gpu", recommendation.gpu.name, "--shape", ",".join(f"{name}={value}" for name, value in problem.dims)]
    about += ["--dtype", problem.dtype, "--layout", problem.layout]
    limit = [] if point.power_limit_w is None else ["--power-limit", f"{point.power_limit_w:g}W"]
    if subject.inputs != RANDOM:
        about += ["--inputs", subject.inputs]
    clock = [] if point.clock_hz is None else ["--clock", f"{point.clock_hz / 1e6:g}MHz"]
    config = config_text(recommendation.config)
    subject_options, at_clock = ["--op", problem.op], clock
    if subject.kernel is not None:  # Another clock cannot lead to another kernel.
        subject_options, at_clock = ["--kernel", subject.kernel.name], ["--clock", "any"] if clock else []
    shown = {"recommend": ["kernrec", "recommend", *subject_options, *about, *limit, *at_clock]}
    if subject.inputs == RANDOM:  # `kernrec explain` only supports random inputs
        kernel = ["--kernel", recommendation.kernel.name]
        shown["explain"] = ["kernrec", "explain", *kernel, *about, "--config", config, *limit, *clock]
    return {name: shlex.join(words) for name, words in shown.items()}


def _number(parameters: Parameters, name: str) -> float | None:
    text = parameters.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"{name} is {text!r:.40}; expected a number") from None
