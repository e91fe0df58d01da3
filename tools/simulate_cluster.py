"""A campaign on up to 64 simulated cards: what the scheduler costs, and how campaign time falls with the cards.

    python tools/simulate_cluster.py overhead [--cards 64] [--measurements 100000]
    python tools/simulate_cluster.py scaling [--cards 1,2,4,8,16,32,64] [--problems 32]

The driver is the real one (`kernrec.cluster.coordinator`), with its journal on this disk; so are the messages and the
search that cards share. The cards are simulated: they take the times below, in simulated seconds. The driver is one
server: a message waits until those before it are handled, which takes the processor time that it takes here, and the
times below for the network and for a disk that synchronizes.

`overhead` prints the share of card time that went by while cards waited for a reply (`asking`), and for work that was
not there (`no work`: at the end, when less is left than there are cards), and the driver's memory at its peak.

`scaling` has made-up spaces (products of smooth, rugged and interacting factors of six tunables), no predictions, and
the guide of every day; it prints after what time every problem's best is within 2 % of its optimum, and when all is
done.
"""

import argparse
import heapq
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.cluster.campaign_plan import CampaignPlan
from kernrec.cluster.coordinator import Coordinator
from kernrec.cluster.messages import CardIdentity, Message, decode, encode, problem_from_data
from kernrec.cluster.scheduler import Phase
from kernrec.cluster.shared_search import SharedSearch
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task, tunable_columns
from kernrec.measure.campaign.results import Progress
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.op import Problem, find_op

GPU = "rtx3090"
NETWORK_S, DISK_S = 0.002, 0.002
"""There and back again; to synchronize the journal (assumptions)."""
PREPARE_S, SCREEN_S, COARSE_S, FINAL_S = 2.0, 0.6, 1.6, 3.0
"""What inputs and a measurement of each tier take (assumptions, after the protocol's caps)."""
COARSE_SHARE, FINALS, DELIVERY_S, BLOCK_S = 0.19, 32, 1.0, 60.0
NEAR = 1.02


@dataclass(frozen=True)
class Landscape:
    """A made-up problem: its configs and how long each takes."""

    problem: Problem
    tunables: np.ndarray
    """(C, 6)."""
    latency_s: np.ndarray


def landscape(number: int, configs: int) -> Landscape:
    """A space of random configs of six tunables, on a problem that no other number has."""
    draw = np.random.default_rng(number)
    every = np.stack(np.meshgrid(*[np.arange(5)] * 6, indexing="ij"), axis=-1).reshape(-1, 6)
    tunables = every[draw.choice(len(every), min(configs, len(every)), replace=False)]
    best, weight = draw.integers(0, 5, 6), draw.uniform(0.01, 0.12, 6)
    log_s = (weight * (tunables - best) ** 2).sum(axis=1)
    rugged = draw.normal(0.0, 0.15, (5, 5))
    log_s += rugged[tunables[:, 0], tunables[:, 1]] + 0.1 * (tunables[:, 2] == tunables[:, 3])
    problem = find_op("matmul").problem(m=64 * (number + 1), n=512, k=512)
    return Landscape(problem, tunables, 1e-3 * np.exp(log_s))


def planned(land: Landscape, most: int, guided: bool) -> PlannedProblem:
    """The problem as the driver plans it."""
    tasks = tuple(
        Task("made-up", "0123456789abcdef", {f"t{i}": int(v) for i, v in enumerate(row)}, land.problem)
        for row in land.tunables
    )
    search = ExpectedImprovement(tunable_columns(tasks)) if guided else None
    return PlannedProblem(land.problem.key, land.problem, tasks, most=most, search=search)


@dataclass
class Card:
    """One simulated card: its clock, and what it does."""

    name: str
    now_s: float = 0.0
    asking_s: float = 0.0
    waiting_s: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    block: int = 0
    position: int = 0
    sent_s: float = 0.0
    since_s: float = 0.0


class Simulation:
    """Cards, the driver and their clocks."""

    def __init__(self, lands: list[Landscape], plans: list[PlannedProblem], cards: int, folder: Path) -> None:
        self._by_key = {land.problem.key: land for land in lands}
        self._draw = np.random.default_rng(0)
        self._journal = Journal(folder / "own.duckdb.journal")
        plan = CampaignPlan(lambda gpu: plans, folder / "own.duckdb")
        self.driver = Coordinator(plan, self._journal, "simulated", self._reported)
        self.cards = [Card(f"card-{i}") for i in range(cards)]
        self._free_s = 0.0  # when the driver can take the next message
        self.driver_s = 0.0
        self.measurements = 0
        self._optimum = {key: float(land.latency_s.min()) for key, land in self._by_key.items()}
        self._far = set(self._by_key)
        self.near_s: float | None = None
        self._now_s = 0.0
        self._steps: dict[str, Any] = {}
        self._replies: dict[str, Message] = {}

    def run(self, until_near: bool = False) -> float:
        """Simulate; returns the time at which the last card was done, or the last problem near its optimum."""
        events: list[tuple[float, int]] = []
        for number, card in enumerate(self.cards):
            self._steps[card.name] = self._life(card)
            heapq.heappush(events, (0.0, number))
        parked: dict[str, int] = {}
        while events:
            self._now_s, number = heapq.heappop(events)
            card = self.cards[number]
            card.now_s = self._now_s
            state = next(self._steps[card.name], "ended")
            if state == "parked":
                parked[card.name] = number
            elif state != "ended":
                heapq.heappush(events, (card.now_s, number))
            for name in list(self.driver.waiting):
                if name in parked and (reply := self.driver.retry(name)) is not None:
                    other = self.cards[waiting := parked.pop(name)]
                    other.waiting_s += max(0.0, self._now_s - other.now_s)
                    other.now_s = max(other.now_s, self._now_s)
                    self._replies[name] = reply
                    heapq.heappush(events, (other.now_s, waiting))
            if until_near and not self._far:
                break
        self._journal.close()
        return max(card.now_s for card in self.cards)

    def _ask(self, card: Card, **message: Any) -> Message | None:
        """Put a question to the driver; the card waits for the reply."""
        if card.records:
            message["records"], card.records = card.records, []
        text = encode(message)
        begin_s = time.process_time()
        reply = self.driver.take(card.name, decode(text))
        text = encode(reply or {})
        took_s = time.process_time() - begin_s + (DISK_S if "records" in message else 0.0)
        self.driver_s += took_s
        self._free_s = max(self._free_s, card.now_s) + took_s
        ready_s = self._free_s + NETWORK_S
        card.asking_s += ready_s - card.now_s
        card.now_s = card.sent_s = ready_s
        return None if reply is None else decode(text)

    def _life(self, card: Card) -> Any:
        """What a card does, step by step; each step ends with the clock at which the next begins."""
        identity = CardIdentity(GPU, f"node-{card.name}", None, "simulated", None, None)
        self._ask(card, hello=identity.as_dict())
        left: Message = {}
        while True:
            reply = self._ask(card, want="job", **left)
            if reply is None:
                yield "parked"
                reply = self._replies.pop(card.name)
            if reply.get("done"):
                return
            plan, guide = problem_from_data(reply["problem"], lambda key: self._by_key[key].problem, False, 0)
            land = self._by_key[plan.problem.key]
            card.now_s += PREPARE_S
            yield "busy"
            if reply["phase"] == Phase.SCREEN:
                search = SharedSearch(len(plan.tasks), guide, self._asker(card))
                search.take(reply)
                yield from self._screen(card, plan, land, search)
                left = {"left_job": {"done": False, "spent": False}}
            else:
                yield from self._finish(card, plan, land)
                left = {"left_job": {"done": True, "spent": False}}
            self._close(card)

    def _asker(self, card: Card) -> Callable[..., Mapping[str, Any]]:
        return lambda **message: self._ask(card, **message) or {}

    def _screen(self, card: Card, plan: PlannedProblem, land: Landscape, search: SharedSearch) -> Any:
        tried: dict[int, float] = {}
        while True:
            order = search.order(np.array(list(tried), dtype=np.int64), np.array(list(tried.values())))
            if not search.granted:
                return
            for config in order[: search.granted].tolist():
                tried[config] = self._measure(card, plan.tasks[config], float(land.latency_s[config]), "screen")
                yield "busy"
                if card.now_s - card.sent_s >= DELIVERY_S:
                    search.take(self._ask(card) or {})

    def _finish(self, card: Card, plan: PlannedProblem, land: Landscape) -> Any:
        for tier, count in (("coarse", round(COARSE_SHARE * len(plan.tasks))), ("final", FINALS)):
            for number in range(count):
                task = plan.tasks[number % len(plan.tasks)]
                self._measure(card, task, 1e-3, tier)
                yield "busy"
                if card.now_s - card.sent_s >= DELIVERY_S:
                    self._ask(card, step=[number, count])

    def _measure(self, card: Card, task: Task, latency_s: float, tier: str) -> float:
        each_s = {"screen": SCREEN_S, "coarse": COARSE_S, "final": FINAL_S}[tier]
        card.now_s += each_s * float(self._draw.uniform(0.5, 1.5))
        measured_s = latency_s * float(np.exp(self._draw.normal(0.0, 0.003)))
        row = {
            "gpu": GPU, "kernel": task.kernel_name, "kernel_hash": task.kernel_hash, "config": task.config,
            "problem": {"key": task.problem.key, "op": task.problem.op, "dims": dict(task.problem.dims),
                        "dtype": task.problem.dtype, "layout": task.problem.layout},
            "protocol_version": 1, "tier": tier, "session": card.name, "block": card.block, "position": card.position,
            "measured_at": "2026-01-01T00:00:00", "outcome": "ok", "latency_s": measured_s,
            "latency_samples_s": (measured_s * np.linspace(0.99, 1.01, 32)).tolist(),
        }  # fmt: skip
        card.records.append({"row": row})
        card.position += 1
        self.measurements += 1
        if tier == "screen" and latency_s <= NEAR * self._optimum[task.problem.key]:
            self._far.discard(task.problem.key)
            if not self._far and self.near_s is None:
                self.near_s = card.now_s
        if card.now_s - card.since_s >= BLOCK_S:
            self._close(card)
        return measured_s

    def _close(self, card: Card) -> None:
        if card.position:
            card.records.append({"closed": card.block, "session": card.name})
        card.block, card.position, card.since_s = card.block + 1, 0, card.now_s

    def _reported(self, progress: Progress) -> None:
        pass


def main() -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("overhead", "scaling"))
    parser.add_argument("--cards", default="")
    parser.add_argument("--measurements", type=int, default=100_000)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--configs", type=int, default=2000, help="of scaling: of each space")
    parser.add_argument("--most", type=int, default=256, help="of scaling: configs to screen of a problem")
    arguments = parser.parse_args()
    (overhead if arguments.what == "overhead" else scaling)(arguments)
    return 0


def overhead(arguments: argparse.Namespace) -> None:
    """Print what the scheduler costs."""
    cards = int(arguments.cards or 64)
    each = 1000
    problems = max(1, round(arguments.measurements / (each * (1.0 + COARSE_SHARE) + FINALS)))
    lands = [landscape(number, each) for number in range(problems)]
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        simulation = Simulation(lands, [planned(land, each, False) for land in lands], cards, Path(folder))
        end_s = simulation.run()
    total_s = cards * end_s
    asking = sum(card.asking_s for card in simulation.cards) / total_s
    none = sum(card.waiting_s + end_s - card.now_s for card in simulation.cards) / total_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{cards} cards, {problems} problems, {simulation.measurements} measurements, {end_s / 60:.0f} simulated min")
    print(f"asking      {100 * asking:.2f} % of card time")
    print(f"no work     {100 * none:.2f} % of card time")
    print(f"driver      busy {100 * simulation.driver_s / end_s:.1f} % of the time, {simulation.driver_s:.0f} s in all")
    print(f"memory      {peak / 1e6:.0f} MB at the peak, the simulated cards included")


def scaling(arguments: argparse.Namespace) -> None:
    """Print campaign time by the number of cards."""
    lands = [landscape(number, arguments.configs) for number in range(arguments.problems)]
    print(f"{len(lands)} problems of {arguments.configs} configs, {arguments.most} screened of each; made-up spaces")
    print(f"{'cards':>5}  {'all within 2 %':>14}  {'speed-up / cards':>16}  {'all done':>10}  {'speed-up / cards':>16}")
    first: tuple[float, float] | None = None
    for cards in map(int, (arguments.cards or "1,2,4,8,16,32,64").split(",")):
        with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
            plans = [planned(land, arguments.most, True) for land in lands]
            simulation = Simulation(lands, plans, cards, Path(folder))
            end_s = simulation.run()
        near_s = simulation.near_s
        first = first or (near_s or float("nan"), end_s)
        near = "never" if near_s is None else f"{near_s:.0f} s"
        shares = [first[0] / (near_s or float("nan")) / cards, first[1] / end_s / cards]
        print(f"{cards:>5}  {near:>14}  {shares[0]:>16.2f}  {end_s:>8.0f} s  {shares[1]:>16.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
