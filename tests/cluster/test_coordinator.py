"""What the driver replies to cards: whom it refuses, what it grants, and what it keeps before it acknowledges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernrec.cluster.coordinator import CampaignPlan, Coordinator
from kernrec.cluster.messages import CardIdentity, decode, encode, problem_as_data, problem_from_data
from kernrec.errors import KernrecError
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.op import find_op

PROBLEM = find_op("elementwise").problem(n=64)
TASKS = tuple(Task("k", "h", {"a": a, "b": 2 * a}, PROBLEM) for a in range(20))
PLANNED = PlannedProblem("layer", PROBLEM, TASKS, probability=0.5)
CARD = CardIdentity("rtx3090", "node", "uuid", "sources", "570", "NVRTC 13")


def row(config: int, tier: str = "screen", **more: object) -> dict[str, Any]:
    columns = {
        "gpu": "rtx3090", "kernel": "k", "kernel_hash": "h", "config": TASKS[config].config, "problem": PROBLEM.key,
        "protocol_version": 1, "tier": tier, "session": "s", "block": 0, "position": config,
        "measured_at": "2026-01-01T00:00:00", "latency_s": 1e-3, "outcome": "ok",
        "latency_samples_s": [1e-3] * 8,
    }  # fmt: skip
    problem = {"key": PROBLEM.key, "op": PROBLEM.op, "dims": dict(PROBLEM.dims), "dtype": "f32", "layout": "row"}
    return {"row": columns | {"problem": problem} | more}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def driver(tmp_path: Path, notes: list[str]) -> Iterator[Coordinator]:
    plan = CampaignPlan(lambda gpu: [PLANNED], tmp_path / "own.duckdb", configs=12)
    with Journal(tmp_path / "own.duckdb.journal") as journal:
        yield Coordinator(plan, journal, "sources", lambda progress: notes.append(progress.note or ""))


def hello(card: CardIdentity = CARD, **changed: object) -> dict[str, Any]:
    return {"hello": card.as_dict() | changed}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sources": "other"}, r"its kernrec \(other\) is not the driver's"),
        ({"compiler": "NVRTC 12", "uuid_hash": "second"}, "its compiler is NVRTC 12, that of node is NVRTC 13"),
        ({}, "its card is in the campaign already"),
    ],
)
def test_a_card_that_differs_is_refused_with_the_reason(
    driver: Coordinator, notes: list[str], changed: dict[str, str], reason: str
) -> None:
    assert driver.take("first", hello()) == {}
    reply = driver.take("second", hello(**changed))
    assert reply is not None
    with pytest.raises(KernrecError, match=reason):
        raise KernrecError(reply["refused"])
    assert notes[-1].startswith("node is left out: ")
    assert driver.take("second", {"want": "job"}) == {"stop": True}


def test_another_driver_is_marked(driver: Coordinator, notes: list[str]) -> None:
    driver.take("first", hello())
    assert driver.take("second", hello(uuid_hash="second", driver="580")) == {}
    assert notes == ["driver 580, others have 570: the rows say so"]


def test_a_budget_of_configs_is_for_all_cards_together(driver: Coordinator) -> None:
    driver.take("first", hello())
    driver.take("first", {"want": "job"})
    reply = driver.take("first", {"want": "configs", "proposed": list(range(20)), "count": 20})
    assert reply is not None
    assert reply["granted"] == list(range(12))
    assert reply["left"] == 0


def test_rows_are_in_the_journal_before_the_reply_and_the_finishing_card_knows_them(
    driver: Coordinator, tmp_path: Path
) -> None:
    driver.take("first", hello())
    driver.take("first", {"want": "job"})
    driver.take("first", {"want": "configs", "proposed": list(range(20)), "count": 12})
    records = [row(config) for config in range(12)]
    driver.take("first", {"records": [*records[:6], {"drifted": 0, "session": "s", "error": "hot"}]})
    assert (tmp_path / "own.duckdb.journal").read_text().count('{"row":') == 6
    closed = {"closed": 1, "session": "s"}
    message = {"records": [*records, closed], "left_job": {"done": False, "spent": False}, "want": "job"}
    reply = driver.take("first", decode(encode(message)))
    assert reply is not None
    assert reply["phase"] == "finish"
    outcomes = [earlier["outcome"] for earlier in reply["earlier"]]
    assert outcomes == ["quarantined"] * 6 + ["ok"] * 12
    assert "latency_samples_s" not in reply["earlier"][0]
    assert len(reply["problem"]["tasks"]) == 12
    assert driver.take("first", {"left_job": {"done": True}, "want": "job"}) == {"done": True}
    assert driver.finished


def test_rows_that_a_card_kept_from_a_killed_campaign_are_taken_once(driver: Coordinator, tmp_path: Path) -> None:
    from kernrec.measure.campaign.ingest import ingest

    kept = [row(0, session="before"), {"closed": 0, "session": "before"}]
    driver.take("first", hello(left=kept))
    assert ingest(driver._journal, tmp_path / "own.duckdb") == 1
    driver.take("second", hello(uuid_hash="second", left=kept))
    assert ingest(driver._journal, tmp_path / "own.duckdb") == 0


def test_a_card_that_waits_goes_on_when_another_is_lost(driver: Coordinator) -> None:
    driver.take("first", hello())
    driver.take("second", hello(uuid_hash="second"))
    assert driver.take("first", {"want": "job"}) is not None
    assert driver.take("second", {"want": "job"}) is None
    assert driver.waiting == ("second",)
    driver.lose("first", "its node died")
    reply = driver.retry("second")
    assert reply is not None
    assert reply["phase"] == "screen"


def test_a_problem_is_the_same_after_it_was_sent() -> None:
    data = decode(encode(problem_as_data(PLANNED)))
    planned, guide = problem_from_data(data, lambda key: PROBLEM, compiles=False, seed=0)
    assert planned == PLANNED
    assert guide is None


def test_a_kernel_that_is_another_one_there_is_refused() -> None:
    data = problem_as_data(PLANNED)
    with pytest.raises(KernrecError, match="kernel k has another source here"):
        problem_from_data(data, lambda key: PROBLEM, compiles=True, seed=0)


def test_what_is_no_message_is_refused() -> None:
    for text in ("", "[1]", "{", "[" * 100_000):
        with pytest.raises(KernrecError, match="no message of kernrec"):
            decode(text)
