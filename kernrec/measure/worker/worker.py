"""The child process that owns the device. It may crash, hang or be killed; nothing that matters lives in it alone.

    python -m kernrec.measure.worker.worker

Requests come on standard input and answers go to standard output, a JSON line each. Requests: open, prepare, measure,
references, idle, probe, sensors (what an earlier probe found). Kernels are those of the library, and the one in the
file that `open` may name (`write_kernel`), whose spec may declare the problem too. Answers are `{"ok": ...}`, or
`{"failure": outcome, "error": text, "lost": bool}`; after a failure with `lost` the process ends, for the device can no
longer be trusted in it. It also ends, at once and whatever it is doing, when its standard input is closed: when its
parent is gone, that is.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, find_kernel, kernel_names
from kernrec.kernel.spec_reader import kernel_from
from kernrec.measure.device.interface import ConfigUnderTest, Device, MeasurementFailure, PreparedProblem
from kernrec.measure.protocol.measure_config import SensorTraits, measure
from kernrec.measure.protocol.probe import IDLE_S, idle_power, probe, references, watch
from kernrec.op import Problem, problem_from_key

Request = Mapping[str, Any]


def main() -> None:
    """Serve requests until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what kernels and libraries print must not end up between answers
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()
    session = Session()
    while True:
        answer = session.answer(json.loads(requests.get()))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("lost"):
            os._exit(1)  # an orderly exit would wait for the device


def _listen(stream: TextIO, requests: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        requests.put(line)
    os._exit(0)


class Session:
    """One device, and what was asked of it so far."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._probed = SensorTraits()
        self._own: Kernel | None = None
        self._folder: Path | None = None
        self._recorded: dict[str, Problem] = {}

    def answer(self, request: Request) -> dict[str, Any]:
        """Do what a request asks; whatever goes wrong is an answer too."""
        kinds: dict[str, Callable[[Request], Any]] = {
            "open": self._open,
            "probe": self._probe,
            "sensors": self._sensors,
            "prepare": self._prepare,
            "measure": self._measure,
            "references": self._references,
            "idle": self._idle,
        }
        start = self._device.now() if self._device else 0.0
        try:
            found: dict[str, Any] = {"ok": kinds[request["do"]](request)}
        except MeasurementFailure as failure:
            found = {"failure": failure.outcome, "error": str(failure), "lost": failure.lost}
            found |= {"columns": failure.columns}
        except KernrecError as error:
            found = {"failure": "crash", "error": str(error), "lost": False}
        except MemoryError:
            found = {"failure": "crash", "error": "out of memory", "lost": True}
        except Exception as error:  # of a library, about this config: who knows in what state it left the device
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            found = {"failure": "crash", "error": text, "lost": True}
        return found | {"device_s": self._device.now() - start if self._device else 0.0}

    @property
    def _open_device(self) -> Device:
        if self._device is None:
            raise KernrecError("no device was opened")
        return self._device

    def _open(self, request: Request) -> dict[str, Any]:
        if request.get("spec"):
            self._own, self._folder = read_kernel(Path(request["spec"]))
        if request["device"] == "replay":
            from kernrec.measure.device.replay import load_recordings, replay_card

            recordings = load_recordings(Path(request["file"]), request["gpu"], request.get("op"))
            self._recorded = {recording.problem.key: recording.problem for recording in recordings}
            self._device = replay_card(recordings, request.get("seed", 0))
        else:
            self._device = open_device(request)
        if request.get("probed"):
            self._probed = SensorTraits(**request["probed"])
        return self._device.facts.as_dict()

    def _probe(self, request: Request) -> dict[str, Any]:
        found = probe(self._open_device)
        self._probed = found.probed
        return found.as_dict()

    def _sensors(self, request: Request) -> None:
        self._probed = SensorTraits(**request["probed"])

    def _prepare(self, request: Request) -> None:
        problem = self._problem(request)
        declares = self._own is not None and problem.definition is self._own.definition and self._own.declares_problem
        case = (
            PreparedProblem(problem, self._own, self._folder, request.get("baseline"))
            if declares
            else PreparedProblem(problem)
        )
        self._open_device.prepare(case)

    def _problem(self, request: Request) -> Problem:
        key = request["problem"]
        return self._recorded.get(key) or problem_from_key(key, self._own.definition if self._own else None)

    def _measure(self, request: Request) -> dict[str, Any]:
        name = request["kernel"]
        if self._own is not None and self._own.name == name:
            kernel: Kernel | None = self._own
        else:
            kernel = find_kernel(name) if name in kernel_names() else None
        subject = ConfigUnderTest(name, request["config"], self._problem(request), kernel)
        return measure(self._open_device, subject, request["tier"], request["best_s"], self._probed)

    def _references(self, request: Request) -> dict[str, Any]:
        device = self._open_device
        found = references(device, self._probed, request["energy"])
        return {"references": found, "settings": vars(device.settings())}

    def _idle(self, request: Request) -> float | None:
        return idle_power(watch(self._open_device, IDLE_S))


def write_kernel(kernel: Kernel, folder: Path, path: Path) -> None:
    """Write a kernel to a file, for a worker that is to measure it. folder: where the files that its spec names are."""
    written = {"name": kernel.name, "spec": kernel.spec, "source": kernel.source, "folder": str(folder.absolute())}
    path.write_text(json.dumps(written), encoding="utf-8")


def read_kernel(path: Path) -> tuple[Kernel, Path]:
    """The kernel that `write_kernel` wrote, and its folder."""
    written = json.loads(path.read_text(encoding="utf-8"))
    return kernel_from(written["spec"], written["name"], written["source"]), Path(written["folder"])


def open_device(request: Request) -> Device:
    """The card that an `open` request names: `cuda` or `faulty`."""
    if request["device"] == "faulty":
        from kernrec.measure.device.fault_injection import faulty_card

        return faulty_card()
    from kernrec.measure.device.cuda import CudaDevice

    return CudaDevice(request["uuid"], Path(request["scratch"]))


if __name__ == "__main__":
    main()
