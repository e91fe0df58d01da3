"""A report: the page in one file, with the answers to all that its reader can ask inside."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.model.prior.power import INPUTS, RANDOM
from kernrec.page.answers import Answers
from kernrec.page.document import offline_document
from kernrec.page.subject import Subject
from kernrec.version import __version__

MOST_BYTES = 6_000_000
"""The largest report: what a ticket or a mail takes as a rule."""
_EXPLAINED = 40
"""Points of a front that are explained at most; all of a usual front."""
_POINTS, _LEAST_POINTS = 20_000, 200
"""Points of all fronts together, and of one front at the least; a point takes 110 bytes."""


def points_of_each(fronts: int) -> int:
    """How many points each of so many fronts may have in a report."""
    return max(_LEAST_POINTS, _POINTS // max(fronts, 1))


def report(
    answers: Answers, gpus: Sequence[GPU], subjects: Sequence[Subject], workload: str | None, inputs: str = RANDOM
) -> tuple[str, list[str]]:
    """The report as HTML, and what is missing in it, one line each.

    Args:
        answers: of the page.
        gpus: side by side, at least one.
        subjects: whose fronts are shown.
        workload: a network that is shown, too; None for none.
        inputs: values that kernels compute on, as those of the subjects.

    Raises:
        UsageError: it would be too large.
        KernrecError: no front can be shown; the message is the first reason.
    """
    recorded: dict[str, Any] = {}
    missing: list[str] = []
    shown: list[dict[str, str]] = []

    def record(path: str, parameters: Mapping[str, str]) -> Any:
        answer = recorded[key(path, parameters)] = answers.answer(path, parameters)
        return answer

    for subject in subjects:
        count = 0
        for gpu in gpus:
            parameters = {"gpu": gpu.name, **subject.parameters}
            try:
                front = record("front", parameters)
            except KernrecError as error:
                missing.append(str(error))
                recorded[key("front", parameters)] = {"error": str(error)}
                continue
            count += 1
            for number in _worth_explaining(front):
                record("explain", {**parameters, **of_point(front, number)})
        if count:
            shown.append({"name": subject.name, **subject.parameters})
    if workload is not None:
        for gpu in gpus:
            parameters = {"gpu": gpu.name, "workload": workload} | ({} if inputs == RANDOM else {"inputs": inputs})
            try:
                record("network", parameters)
            except KernrecError as error:
                missing.append(str(error))
                recorded[key("network", parameters)] = {"error": str(error)}
    if not shown and not any(name.startswith("network") and "error" not in recorded[name] for name in recorded):
        raise KernrecError(missing[0])
    record("database", {})
    data = {
        "mode": "report",
        "version": __version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": {
            "problems": shown,
            "gpus": [{"name": gpu.name, "title": gpu.title} for gpu in gpus],
            "workloads": [workload] if workload else [],
            "inputs": list(INPUTS),
        },
        "chosen": {
            "gpus": [gpu.name for gpu in gpus],
            "clocks": any(subject.clocks for subject in subjects),
            "inputs": inputs,
            "workload": workload,
        },
        "answers": recorded,
    }
    text = offline_document(data)
    if (size := len(text.encode())) > MOST_BYTES:
        raise UsageError(
            f"the report would have {size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:g} MB are written;"
            " give fewer GPUs or shapes"
        )
    return text, missing


def key(path: str, parameters: Mapping[str, str]) -> str:
    """The question that an answer is kept under; the page's script makes the same text."""
    return f"{path}?{urlencode(sorted(parameters.items()))}"


def _worth_explaining(front: Mapping[str, Any]) -> list[int]:
    """Numbers of the points that a report explains: those of the front, evenly spread over a long one."""
    numbers: list[int] = front["front"]
    step = max(1, -(-len(numbers) // _EXPLAINED))
    return numbers[::step]


def of_point(front: Mapping[str, Any], number: int) -> dict[str, str]:
    """The parameters that name a point of a front."""
    points = front["points"]
    kernel = points["kernel"][number]
    configs, point = front["configs"][kernel], front["operating_points"][points["point"][number]]
    values = configs["values"][points["config"][number]]
    named = {
        "kernel": front["kernels"][kernel],
        "config": ",".join(f"{name}={value}" for name, value in zip(configs["names"], values, strict=True)),
        "power_limit_w": plain(point["power_limit_w"]),
    }
    return named if point["clock_hz"] is None else {**named, "clock_hz": plain(point["clock_hz"])}


def plain(value: float) -> str:
    """A number as the page's script writes it: 300.0 as 300."""
    return repr(value).removesuffix(".0")
