"""The order of a record tells at which clock its configs ran."""

import datetime
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kernrec.model import scores

ROOT = Path(__file__).parents[2]
SPACES = ROOT.parent / "shared" / "data" / "spaces"
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


clock = tool("recorded_clock")
needs_record = pytest.mark.skipif(
    not (SPACES / clock.FILE).is_file(), reason="needs the recorded spaces in ../shared/data"
)


def record(folder: Path, *entries: tuple[float, list[float]]) -> Path:
    """A record of configs that ended at these seconds, with these run times in ms; block_size_x numbers them."""
    results = [
        {
            "timestamp": str(START + datetime.timedelta(seconds=end)),
            "times": {"runtimes": times},
            "invalidity": "correct",
            "configuration": dict.fromkeys(clock.TUNABLES, 0) | {"block_size_x": number},
        }
        for number, (end, times) in enumerate(entries)
    ]
    with gzip.open(folder / clock.FILE, "wt") as file:
        json.dump({"results": results}, file)
    return folder


def base(folder: Path) -> list[bool]:
    return [kept for _, kept in sorted(clock.at_base_clock(clock.runs(folder)).items())]


def test_a_config_shortly_after_long_work_did_not_find_an_idle_card(tmp_path: Path) -> None:
    short, long = [1.0] * 32, [4.0] * 32
    assert base(record(tmp_path, (1.0, short), (2.0, short), (5.0, long), (6.0, short), (9.0, short))) == [
        True, True, True, False, True,
    ]  # fmt: skip


def test_a_clock_that_changed_during_a_config_is_seen_in_its_runs(tmp_path: Path) -> None:
    waking, stepping = [9.0, 2.0] + [1.0] * 30, [8.0] * 20 + [4.5] * 12
    assert base(record(tmp_path, (1.0, waking), (9.0, stepping))) == [True, False]


@needs_record
def test_no_twin_is_much_faster_where_both_found_an_idle_card() -> None:
    found = clock.runs(SPACES)
    kept = clock.at_base_clock(found)
    time_s = {run.config: float(np.median(run.times_s)) for run in found}
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for config, seconds in time_s.items():
        twin = (*config[:4], 0, *config[5:])
        if config[6] == 1 and config[4] == 1 and twin in time_s:
            ratios[kept[config] and kept[twin]].append(seconds / time_s[twin])
    assert len(ratios[True]) > 800
    assert min(ratios[True]) > 0.8
    assert np.mean(np.array(ratios[False]) < 0.8) > 0.4


@needs_record
def test_the_prior_finds_the_best_of_the_configs_at_one_clock() -> None:
    space = tool("recorded_convolution").load(SPACES)["a100"]
    kept = clock.at_base_clock(clock.runs(SPACES))
    columns = np.stack([space.columns[name] for name in clock.TUNABLES], axis=1).astype(int)
    rows = np.array([kept[tuple(row)] for row in columns.tolist()])
    measured, order = space.time_s[rows], scores.order_of(space.settled.latency_s[rows])
    assert 1.0 / scores.efficiency_at(measured, order, len(measured) // 100) <= 1.05
