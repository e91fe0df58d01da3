"""Replaces the measuring process by calls in this process, because starting a process takes longer than most
campaigns of tests."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from kernrec.measure.worker.worker import WorkerSession
from kernrec.measure.worker.worker_client import Stopped, WorkerClient


class WorkerHere(WorkerClient):
    """Worker client that answers its requests in this process, but still encodes them as lines."""

    session: WorkerSession | None = None

    @property
    def alive(self) -> bool:
        return self.session is not None

    @property
    def pid(self) -> int | None:
        return os.getpid() if self.alive else None

    def _start_process(self) -> None:
        self.session = WorkerSession()

    def stop(self) -> None:
        self.session = None

    def _exchange(self, request: bytes, limit_s: float) -> bytes:
        if self._stopping():
            self.stop()
            raise Stopped
        assert self.session is not None
        return json.dumps(self.session.answer(json.loads(request))).encode()


@contextmanager
def measuring_here() -> Iterator[None]:
    """Run measurements in this process inside the context."""
    with ExitStack() as stack:
        for module in ("kernrec.measure.collect", "kernrec.cluster.card", "tests.helpers.rig"):
            stack.enter_context(patch(f"{module}.WorkerClient", WorkerHere))
        yield
