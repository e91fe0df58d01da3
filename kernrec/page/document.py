"""Build the HTML document of the page.

A report is a single file with style, scripts and answers. Its content security policy forbids network access.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.model.analytical.power import INPUTS, RANDOM
from kernrec.page.answers import Answers
from kernrec.page.front import Subject
from kernrec.util.optional import require_optional
from kernrec.version import __version__

_STATIC = Path(__file__).with_name("static")
OWN_SCRIPTS = ("format.js", "view.js", "plots.js", "views.js", "front_plot.js", "page.js")
BOKEH_SCRIPTS = ("bokeh.min.js", "bokeh-api.min.js")
STYLE = "page.css"

SERVED_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of a served page. `unsafe-inline` lets Bokeh insert style elements."""
_REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
    " form-action 'none'"
)


@cache
def content(name: str) -> str:
    """Return the text of a file of the page. Raise `KernrecError` if Bokeh is needed but not installed."""
    if name not in BOKEH_SCRIPTS:
        return (_STATIC / name).read_text(encoding="utf-8")
    require_optional(["bokeh"], "the page", "page")
    spec = importlib.util.find_spec("bokeh")
    assert spec is not None
    assert spec.origin is not None
    # Read the file without importing Bokeh, because the page needs only Bokeh's scripts.
    return (Path(spec.origin).parent / "server" / "static" / "js" / name).read_text(encoding="utf-8")


def served_document(data: dict[str, Any]) -> str:
    """Return the served document with initial data for its script."""
    head = f'<link rel="stylesheet" href="/{STYLE}">'
    scripts = "".join(f'<script src="/{name}"></script>' for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS))
    return _document(head, data, scripts)


def offline_document(data: dict[str, Any]) -> str:
    """Return the document of a report, which contains style, scripts and data."""
    head = f'<meta http-equiv="Content-Security-Policy" content="{_REPORT_POLICY}"><style>{content(STYLE)}</style>'
    scripts = "".join(
        f"<script>{content(name).replace('</script', '<' + chr(92) + '/script')}</script>"
        for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS)
    )
    return _document(head, data, scripts)


def _document(head: str, data: dict[str, Any], scripts: str) -> str:
    # Escape `<`, because `</script>` in the data would end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = content("page.html")
    parts = {
        "<!--head-->": head,
        "<!--data-->": f'<script type="application/json" id="data">{text}</script>',
        "<!--scripts-->": scripts,
    }
    for place, part in parts.items():
        before, _, after = page.partition(place)
        page = before + part + after
    return page


MOST_BYTES = 6_000_000
"""Maximum bytes of a report. Emails and tickets usually accept attachments of this size."""
_EXPLAINED = 40
"""Maximum number of points per front for which a report contains explanations."""
_POINTS, _LEAST_POINTS = 20_000, 200
"""Maximum number of points in a report, and minimum number for each front. A point takes 110 bytes."""


def points_of_each(fronts: int) -> int:
    """Return the maximum number of points for each front in a report."""
    return max(_LEAST_POINTS, _POINTS // max(fronts, 1))


def report(
    answers: Answers, gpus: Sequence[GPU], subjects: Sequence[Subject], workload: str | None, inputs: str = RANDOM
) -> tuple[str, list[str]]:
    """Return (HTML of the report, messages on missing parts).

    Args:
        gpus: GPUs to compare, at least one.
        subjects: Problems whose Pareto fronts to show.
        workload: Name of a network to show, or None to show no network.
        inputs: Data that the kernels of the network compute on, as in `Query.inputs`.

    Raises:
        UsageError: The report would be too large.
        KernrecError: No front and no network can be shown.
    """
    recorded: dict[str, Any] = {}
    missing: list[str] = []
    shown: list[dict[str, str]] = []

    def record(path: str, parameters: Mapping[str, str]) -> Any:
        try:
            answer = answers.answer(path, parameters)
        except KernrecError as error:
            missing.append(str(error))
            answer = {"error": str(error)}
        recorded[key(path, parameters)] = answer
        return answer

    for subject in subjects:
        fronts = []
        for gpu in gpus:
            parameters = {"gpu": gpu.name, **subject.parameters}
            if "error" not in (front := record("front", parameters)):
                fronts.append(front)
                numbers: list[int] = front["front"]
                for number in numbers[:: max(1, -(-len(numbers) // _EXPLAINED))]:
                    record("explain", {**parameters, **of_point(front, number)})
        if fronts:
            shown.append({"name": subject.name, **subject.parameters})
    if workload is not None:
        for gpu in gpus:
            how = {} if inputs == RANDOM else {"inputs": inputs}
            record("network", {"gpu": gpu.name, "workload": workload} | how)
    if not shown and not any(name.startswith("network") and "error" not in recorded[name] for name in recorded):
        raise KernrecError(missing[0])
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
            f"the report would have {size / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:g} MB are allowed;"
            " give fewer GPUs or shapes"
        )
    return text, missing


def key(path: str, parameters: Mapping[str, str]) -> str:
    """Return the key of an answer in a report. The page's script uses the same key."""
    return f"{path}?{urlencode(sorted(parameters.items()))}"


def of_point(front: Mapping[str, Any], number: int) -> dict[str, str]:
    """Return kernel, config, power limit and clock of point number `number` in a front."""
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
    """Return a number as JavaScript formats it, such as 300 for 300.0."""
    return repr(value).removesuffix(".0")
