"""What the measuring process does, done in this process, where a test is not about it: it takes longer to start than
most campaigns of tests do."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from kernrec.measure.worker.worker import WorkerSession
from kernrec.measure.worker.worker_client import Stopped, WorkerClient


class WorkerHere(WorkerClient):
    """A client that answers its own requests, as lines, too."""

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
    """While the context lasts, campaigns start no measuring process."""
    with ExitStack() as stack:
        for module in ("kernrec.measure.collect", "kernrec.cluster.card", "tests.helpers.rig"):
            stack.enter_context(patch(f"{module}.WorkerClient", WorkerHere))
        yield
