"""What the driver replies to cards: whom it refuses, what it grants, and what it keeps before it acknowledges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernrec.cluster.campaign_plan import CampaignPlan
from kernrec.cluster.coordinator import Coordinator
from kernrec.cluster.messages import CardIdentity, decode, encode, problem_as_data, problem_from_data
from kernrec.errors import KernrecError
from kernrec.measure.campaign.ingest import measurements_of
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.op import find_op
from kernrec.store import Database

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
        ({"sources": "newer", "says": "more"}, r"its kernrec \(newer\) is not the driver's"),
        ({"compiler": "NVRTC 12", "uuid_hash": "second"}, "its compiler is NVRTC 12, that of node is NVRTC 13"),
        ({}, "its card is in the campaign already"),
        (
            {"limits": [250.0, None, None, False], "uuid_hash": "second"},
            "its power limit and clocks are 250 W, not locked, here not limited, not locked",
        ),
    ],
)
def test_a_card_that_differs_is_refused_with_the_reason(
    driver: Coordinator, notes: list[str], changed: dict[str, object], reason: str
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
    assert notes == ["rtx3090 on node: driver 580, others have 570: the rows say so"]


def test_a_card_that_is_lost_is_named_with_its_node(driver: Coordinator, notes: list[str]) -> None:
    driver.take("first", hello())
    driver.lose("first", "no space left on device")
    driver.lose("second", "no such file", "node-2")
    assert notes == [
        "rtx3090 on node: no space left on device; the campaign goes on without this card",
        "a card of node-2: no such file; the campaign goes on without it",
    ]


def test_what_the_database_has_at_another_power_limit_is_measured_at_the_present_one(
    driver: Coordinator, tmp_path: Path
) -> None:
    rows = [row(0, power_limit_w=250.0), row(1), row(2, locked_sm_clock_hz=1.2e9)]
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        database.add_measurements(next(measurements_of([it, {"closed": 0, "session": "s"}])) for it in rows)
    driver.take("first", hello())
    driver.take("first", {"want": "job"})
    reply = driver.take("first", {"want": "configs", "proposed": [0, 1, 2, 3], "count": 4})
    assert reply is not None
    assert reply["granted"] == [0, 2, 3]


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


@pytest.mark.parametrize("left", [[row(0), {"closed": 0, "session": "s"}], None])
def test_nothing_is_given_out_before_the_first_cards_have_said_what_they_have_or_are_lost(
    driver: Coordinator, left: list[dict[str, Any]] | None
) -> None:
    driver.expect(["first", "second"])
    driver.take("first", hello())
    assert driver.take("first", {"want": "job"}) is None
    if left:
        driver.take("second", hello(uuid_hash="second", left=left))
    else:
        driver.lose("second", "it did not start", "node-2")
    assert driver.retry("first") is not None
    reply = driver.take("first", {"want": "configs", "proposed": [0, 1], "count": 2})
    assert reply is not None
    assert reply["granted"] == ([1] if left else [0, 1])


def test_of_an_open_block_the_best_config_is_not_taken_for_known(driver: Coordinator, tmp_path: Path) -> None:
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        database.add_measurements(measurements_of([row(3)]))
    driver.take("first", hello())
    reply = driver.take("first", {"want": "job"})
    assert reply is not None
    assert reply["earlier"] == []


def test_the_best_config_of_a_block_that_was_lost_is_measured_again(driver: Coordinator) -> None:
    driver.take("first", hello())
    driver.take("first", {"want": "job"})
    driver.take("first", {"want": "configs", "proposed": list(range(12)), "count": 12})
    driver.take("first", {"records": [row(3, latency_s=2e-3), {"closed": 0, "session": "s"}, row(5, block=1)]})
    driver.lose("first", "its node died")
    driver.take("second", hello(uuid_hash="second"))
    reply = driver.take("second", {"want": "job"})
    assert reply is not None
    assert reply["lost"] == [5]
    assert reply["earlier"] == []
    driver.take("second", {"want": "configs", "proposed": [5], "count": 1})
    again = [row(5, session="t"), {"closed": 0, "session": "t"}]
    driver.take("second", {"records": again, "left_job": {"done": False, "spent": False}})
    reply = driver.take("second", {"want": "job"})
    assert reply is not None
    assert [earlier["config"] for earlier in reply["earlier"]] == [TASKS[5].config]


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
