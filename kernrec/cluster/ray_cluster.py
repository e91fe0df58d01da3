"""The processes of a campaign's cards on a Ray cluster: one actor for each GPU, which has it alone.

Actors end with the driver, however that ends. Between machines only texts are sent (`messages`); what Ray itself sends
are the name of a class of kernrec, which has to be installed on every node, and these texts.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kernrec.cluster.card_worker import CardWorker
from kernrec.errors import KernrecError, UsageError
from kernrec.util.optional import import_optional

CONNECT_S = 10.0
"""How long an address may take to answer."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a connection of HTTP/2 begins (RFC 9113, 3.4), with empty settings: a head node, which speaks it, replies."""
_NAMESPACE, _NAME = "kernrec", "campaign"
_STARTS = 3
"""How often a card's process is started again on a node that lives."""


class _Holder:
    """The actor whose name says that a campaign runs; it ends with the driver."""

    def __init__(self, who: str) -> None:
        self._who = who

    def who(self) -> str:
        """Machine and process of the driver, and its database."""
        return self._who


@dataclass
class _Place:
    """A GPU of a node, or for a recording a core."""

    node: str
    slot: int
    starts: int = 0
    card: str | None = None


@dataclass
class _Actor:
    handle: Any
    place: _Place
    pending: Any = field(default=None)


def connect(address: str) -> Any:
    """The module of Ray, connected to a cluster.

    Args:
        address: `auto`, the cluster that this machine belongs to, or host:port of its head node.

    Raises:
        KernrecError: Ray is not installed.
        UsageError: no cluster is there, or it does not answer in `CONNECT_S`.
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
    if errors and address == "auto":
        raise UsageError(
            "--cluster auto: this machine belongs to no Ray cluster (`ray start --head` begins one); give host:port of"
            " its head node"
        )
    if errors:
        reason = " ".join(str(errors[0]).split())[:200]
        raise UsageError(f"--cluster {address}: no Ray cluster that can be joined: {reason}")
    return ray


def check_answers(address: str) -> None:
    """Raises `UsageError` for what is no host:port, and where nothing answers there in `CONNECT_S`."""
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
    """The cards of a Ray cluster; a `Cluster` for `collect_on`."""

    def __init__(self, address: str, database: object, replays: bool) -> None:
        """Join a cluster.

        Args:
            address: as of `connect`.
            database: that the campaign fills, for whoever wants to begin another.
            replays: whether recordings are replayed: a process for each core, not for each GPU.

        Raises:
            UsageError: as `connect`; another campaign runs there; no node has a GPU.
            KernrecError: Ray is not installed.
        """
        self._ray = connect(address)
        self._resource = "CPU" if replays else "GPU"
        self._places: dict[tuple[str, int], _Place] = {}
        self._actors: dict[str, _Actor] = {}
        self._number = 0
        who = f"PID {os.getpid()} on {socket.gethostname()}, {database}"
        try:
            self._claim(who)
            if not any(count for _, count in self._nodes()):
                raise UsageError(
                    f"--cluster {address}: none of its {len(self._ray.nodes())} nodes has a GPU to measure on;"
                    " `ray start --num-gpus` says how many a node has"
                )
        except BaseException:
            self.close()
            raise

    def _claim(self, who: str) -> None:
        ray = self._ray
        try:
            here = _on_node(ray.get_runtime_context().get_node_id())  # another node may die before the campaign ends
            self._holder = ray.remote(_Holder).options(name=_NAME, num_cpus=0, scheduling_strategy=here).remote(who)
            ray.get(self._holder.who.remote(), timeout=CONNECT_S * 6)
        except ValueError:
            other = "another one"
            with suppress(Exception):
                other = ray.get(ray.get_actor(_NAME).who.remote(), timeout=CONNECT_S)
            raise UsageError(f"a campaign runs on this cluster already ({other}); wait for it to end") from None
        except ray.exceptions.RayError as error:
            raise KernrecError(f"the cluster starts no process: {' '.join(str(error).split())[:200]}") from None

    def _nodes(self) -> list[tuple[str, int]]:
        """(node, cards on it) of the nodes that live."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return [(node["NodeID"], int(node["Resources"].get(self._resource, 0))) for node in alive]

    def join(self, setup_of: Callable[[int], dict[str, object]]) -> list[str]:
        """As of `Cluster`."""
        new = []
        for node, count in self._nodes():
            for slot in range(count):
                place = self._places.setdefault((node, slot), _Place(node, slot))
                if place.card is not None or place.starts >= _STARTS:
                    continue
                place.starts += 1
                place.card = card = f"card-{self._number}"
                needs = {"num_cpus": 1} if self._resource == "CPU" else {"num_cpus": 0, "num_gpus": 1}
                remote = self._ray.remote(CardWorker).options(**needs, scheduling_strategy=_on_node(node))
                handle = remote.remote(setup_of(self._number))
                self._actors[card] = _Actor(handle, place)
                self._number += 1
                new.append(card)
        return new

    def turn(self, card: str, reply: str) -> None:
        """As of `Cluster`."""
        actor = self._actors[card]
        actor.pending = actor.handle.turn.remote(reply)

    def wait(self, seconds: float) -> Iterable[tuple[str, str | None, str]]:
        """As of `Cluster`."""
        by_answer = {actor.pending: card for card, actor in self._actors.items() if actor.pending is not None}
        if not by_answer:
            threading.Event().wait(seconds)
            return
        ready, _ = self._ray.wait(list(by_answer), timeout=seconds)
        for answer in ready:
            card = by_answer[answer]
            self._actors[card].pending = None
            try:
                yield card, self._ray.get(answer), ""
            except Exception as error:
                first = " ".join(str(error).split())[:160]
                yield card, None, f"lost: {type(error).__name__}: {first}"

    def end(self, card: str) -> None:
        """As of `Cluster`."""
        actor = self._actors.pop(card)
        actor.place.card = None
        with suppress(Exception):
            self._ray.kill(actor.handle)

    def close(self) -> None:
        """As of `Cluster`."""
        for card in list(self._actors):
            self.end(card)
        self._ray.shutdown()


def _on_node(node: str) -> Any:
    """What starts a process on one node, by its ID, or nowhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)
