"""Run the actors of a campaign on a Ray cluster: one actor per GPU, with exclusive use of that GPU.

If an actor's process or node dies, Ray restarts the actor where a GPU is free. kernrec must be installed on every node,
because Ray sends classes only by name.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kernrec.cluster.gpu_actor import GpuActor, GpuLost, Reply
from kernrec.errors import KernrecError, UsageError
from kernrec.util.optional import import_optional

CONNECT_S = 10.0
"""Seconds to wait for a server to respond at the cluster's address."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes of an HTTP/2 connection (RFC 9113, 3.4), to which a head node replies."""
_NAMESPACE, _NAME = "kernrec", "campaign"


class _Holder:
    """Ray actor whose name marks the Ray cluster as in use. Ray removes the actor when the campaign's process ends."""

    def __init__(self, who: str) -> None:
        self._who = who

    def who(self) -> str:
        return self._who


def connect(address: str) -> Any:
    """Connect to a Ray cluster, and return the module `ray`.

    Args:
        address: `auto` for the cluster of this machine, or host:port of a head node.

    Raises:
        KernrecError: Ray is not installed.
        UsageError: There is no cluster at the address, or it does not respond within `CONNECT_S`.
    """
    ray = import_optional("ray", "--cluster", "ray")
    if address != "auto":
        check_answers(address)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level="CRITICAL")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    if thread.is_alive():
        raise UsageError(f"--cluster {address}: no Ray cluster answers within {CONNECT_S:g} s")
    # Ray also raises `ConnectionError` on a busy machine.
    if errors and address == "auto" and isinstance(errors[0], ConnectionError):
        raise UsageError(
            "--cluster auto: this machine belongs to no Ray cluster (`ray start --head` starts one); give host:port of"
            " its head node"
        )
    if errors:
        reason = " ".join(str(errors[0]).split())[:200]
        raise UsageError(f"--cluster {address}: the Ray cluster cannot be joined: {reason}")
    return ray


def check_answers(address: str) -> None:
    """Raise `UsageError` if an address is not host:port, or no server responds within `CONNECT_S`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in host:
        raise UsageError(f"--cluster {address!r}: expected auto or host:port of the head node, such as 10.0.0.1:6379")
    end_s = time.monotonic() + CONNECT_S
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as connection:
            connection.settimeout(max(0.1, end_s - time.monotonic()))
            connection.sendall(_GREETING)
            answer = connection.recv(1)
    except TimeoutError:
        raise UsageError(f"--cluster {address}: nothing answers there within {CONNECT_S:g} s") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"--cluster {address}: nothing answers there ({reason})") from None
    if not answer:
        raise UsageError(f"--cluster {address}: no Ray cluster answers there: the connection is closed at once")


class RayCluster:
    """Actors of a campaign on a Ray cluster, one per GPU."""

    def __init__(self, address: str, database: object, replays: bool) -> None:
        """Connect to a cluster and reserve it. If the campaign replays recordings, there is one actor per core.

        Raises:
            UsageError: There is no cluster at the address, another campaign is running on it, or no node has a GPU.
            KernrecError: Ray is not installed, or the cluster cannot start a process.
        """
        self._ray = connect(address)
        self._needs = {"num_cpus": 1} if replays else {"num_cpus": 0, "num_gpus": 1}
        self._resource = "CPU" if replays else "GPU"
        self._actors: dict[str, Any] = {}
        self._pending: dict[Any, str] = {}  # Names of actors, keyed by the call in progress.
        try:
            self._claim(f"PID {os.getpid()} on {socket.gethostname()}, {database}")
            if not self._places():
                raise UsageError(
                    f"--cluster {address}: none of its {len(self._alive())} nodes has a GPU to measure on;"
                    " set the number of a node's GPUs with `ray start --num-gpus`"
                )
        except BaseException:
            self.close()
            raise

    def _claim(self, who: str) -> None:
        ray = self._ray
        try:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            # Reserve the campaign's name with an actor on this node: other nodes may die before the campaign ends.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            self._holder = ray.remote(_Holder).options(name=_NAME, num_cpus=0, scheduling_strategy=here).remote(who)
            ray.get(self._holder.who.remote(), timeout=CONNECT_S * 6)
        except ray.exceptions.GetTimeoutError:
            raise KernrecError(f"the cluster is too busy: it started no process within {CONNECT_S * 6:g} s") from None
        except ValueError as error:
            try:
                other = ray.get(ray.get_actor(_NAME).who.remote(), timeout=CONNECT_S)
            except ray.exceptions.RayError:
                other = "one that is too busy to name its owner"
            except ValueError:  # No other campaign holds the name.
                raise KernrecError(
                    f"the cluster cannot start a process: {' '.join(str(error).split())[:200]}"
                ) from None
            raise UsageError(f"a campaign runs on this cluster already ({other}); wait for it to end") from None
        except ray.exceptions.RayError as error:
            raise KernrecError(f"the cluster cannot start a process: {' '.join(str(error).split())[:200]}") from None

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _places(self) -> int:
        return sum(int(node["Resources"].get(self._resource, 0)) for node in self._alive())

    def join(self) -> list[str]:
        """Start an actor for each GPU that has none, and return the names of the new actors."""
        new = [f"gpu-{number}" for number in range(len(self._actors), self._places())]
        for name in new:
            self._actors[name] = self._ray.remote(GpuActor).options(**self._needs, max_restarts=-1).remote()
        return new

    def call(self, device: str, method: str, *arguments: object) -> None:
        """Call a method of an actor. `wait` later yields the reply."""
        called = getattr(self._actors[device], method)
        if method == "measure":
            called = called.options(num_returns="streaming")
        self._pending[called.remote(*arguments)] = device

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """Yield (actor name, reply) for each reply within `seconds`."""
        if not self._pending:
            time.sleep(seconds)
            return
        ready, _ = self._ray.wait(list(self._pending), timeout=seconds)
        for called in ready:
            device = self._pending.pop(called)
            try:
                if not isinstance(called, self._ray.ObjectRefGenerator):
                    yield device, self._ray.get(called)
                    continue
                with suppress(StopIteration):
                    reply = self._ray.get(next(called))
                    self._pending[called] = device
                    yield device, reply
            except self._ray.exceptions.RayError as error:
                yield device, GpuLost(f"lost: {type(error).__name__}: {' '.join(str(error).split())[:160]}")

    def close(self) -> None:
        for actor in self._actors.values():
            with suppress(Exception):
                self._ray.kill(actor)
        self._ray.shutdown()
