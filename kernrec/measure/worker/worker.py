"""Run the worker process, which owns the device. The worker stores no results, so it may crash, hang or be killed.

    python -m kernrec.measure.worker.worker

Requests arrive on standard input and answers go to standard output, one JSON line each. An answer is `{"ok": ...}`, or
`{"failure": outcome, "error": text, "lost": bool, "report": {...}}`. The process ends if `lost` is true, because it can
no longer use the device. It also ends when its standard input is closed.
"""

import importlib
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
from kernrec.measure.protocol.measure_config import Probe, measure_config
from kernrec.measure.protocol.probe import IDLE_S, idle_power, measure_references, probe_sensors, read_idle_sensors
from kernrec.op import Problem, problem_from_key
from kernrec.store.measurement import Outcome, Tier

Request = Mapping[str, Any]


def main() -> None:
    """Answer requests until standard input is closed."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Output of kernels and libraries must not mix with answers, so send it to standard error.
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()
    session = WorkerSession()
    while True:
        answer = session.answer(json.loads(requests.get()))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("lost"):
            os._exit(1)  # A regular exit would wait for the device, which may hang.


def _listen(stream: TextIO, requests: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        requests.put(line)
    os._exit(0)


class WorkerSession:
    """State of the worker process: its device and the user's kernel."""

    def __init__(self) -> None:
        self._device: Device | None = None
        self._user_kernel: Kernel | None = None
        self._folder: Path | None = None
        self._recorded: dict[str, Problem] = {}

    def answer(self, request: Request) -> dict[str, Any]:
        """Carry out a request, and return the answer. Errors are answers, too."""
        kinds: dict[str, Callable[[Request], Any]] = {
            "open": self._open,
            "probe": lambda request: vars(probe_sensors(self._open_device)),
            "prepare": self._prepare,
            "measure": self._measure,
            "references": self._references,
            "idle": lambda request: idle_power(read_idle_sensors(self._open_device, IDLE_S)),
        }
        start = self._device.now() if self._device else 0.0
        try:
            answer: dict[str, Any] = {"ok": kinds[request["do"]](request)}
        except MeasurementFailure as failure:
            answer = _failure(failure.outcome, str(failure), failure.lost) | {"report": failure.report.as_json()}
        except KernrecError as error:
            answer = _failure(Outcome.CRASH, str(error), False)
        except MemoryError:
            answer = _failure(Outcome.CRASH, "out of memory", True)
        except Exception as error:  # After an error in a library, the device may be unusable.
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            answer = _failure(Outcome.CRASH, text, True)
        return answer | {"device_s": self._device.now() - start if self._device else 0.0}

    @property
    def _open_device(self) -> Device:
        if self._device is None:
            raise KernrecError("no device was opened")
        return self._device

    def _open(self, request: Request) -> dict[str, Any]:
        if kernel := request.get("kernel"):
            self._user_kernel = kernel_from(kernel["spec"], kernel["name"], kernel["source"])
            self._folder = Path(request["folder"])
        if request["device"] == "replay":
            from kernrec.measure.device.replay import load_recordings, replay_gpu

            recordings = load_recordings(Path(request["file"]), request["gpu"])
            self._recorded = {recording.problem.key: recording.problem for recording in recordings}
            self._device = replay_gpu(recordings, request.get("seed", 0))
        else:
            self._device = open_device(request)
        return self._device.info.as_dict()

    def _prepare(self, request: Request) -> None:
        problem, kernel = self._problem(request), self._user_kernel
        prepared = PreparedProblem(problem)
        if kernel is not None and problem.definition is kernel.definition and kernel.declares_problem:
            prepared = PreparedProblem(problem, kernel, self._folder, request.get("baseline"))
        self._open_device.prepare(prepared)

    def _problem(self, request: Request) -> Problem:
        key = request["problem"]
        user_op = self._user_kernel.definition if self._user_kernel else None
        return self._recorded.get(key) or problem_from_key(key, user_op)

    def _measure(self, request: Request) -> dict[str, Any]:
        name = request["kernel"]
        if self._user_kernel is not None and self._user_kernel.name == name:
            kernel: Kernel | None = self._user_kernel
        else:
            kernel = find_kernel(name) if name in kernel_names() else None
        subject = ConfigUnderTest(name, request["config"], self._problem(request), kernel)
        tier, best_s, probe = Tier(request["tier"]), request["best_s"], Probe(**request["probe"])
        return measure_config(self._open_device, subject, tier, best_s, probe).as_json()

    def _references(self, request: Request) -> dict[str, Any]:
        device = self._open_device
        costs = measure_references(device, Probe(**request["probe"]), request["energy"])
        return {"references": costs, "settings": vars(device.settings())}


def _failure(outcome: Outcome, error: str, lost: bool) -> dict[str, Any]:
    return {"failure": outcome, "error": error, "lost": lost}


def open_device(request: Request) -> Device:
    """Open the device that a request names: a CUDA GPU or, in tests, the result of the function `module:function`."""
    module, colon, function = str(request["device"]).partition(":")
    if colon:
        device: Device = getattr(importlib.import_module(module), function)()
        return device
    from kernrec.measure.device.cuda import CudaDevice

    return CudaDevice(request["uuid"], Path(request["scratch"]))


if __name__ == "__main__":
    main()
