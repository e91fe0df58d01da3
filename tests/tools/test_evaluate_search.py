"""The evaluations of search and refining: their figures are what they say, and without recordings they end well."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.paths import TOOLS


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(TOOLS))
    return {name: importlib.import_module(name) for name in ("evaluate_search", "evaluate_refine")}


@pytest.mark.parametrize("name", ["evaluate_search", "evaluate_refine"])
def test_without_recordings_there_is_a_message(
    name: str, tools: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", [name, "--data", str(tmp_path)])
    assert tools[name].main() == 0
    assert "nothing evaluated" in capsys.readouterr().out


def test_a_config_counts_for_the_best_once_its_energy_is_measured(tools: dict[str, ModuleType]) -> None:
    evaluate = tools["evaluate_search"]
    costs = np.arange(1.0, 301.0)
    trace = [(config, False) for config in range(299, 99, -1)] + [(100, True), (150, True)]
    assert evaluate.curve(costs, trace)[:3] == [np.inf] * 3
    assert evaluate.curve(costs, trace)[3] == 101.0
    assert evaluate.energy_to(costs, trace, 101.0) == 1
    assert evaluate.energy_to(costs, trace, 100.0) is None


def test_problems_with_too_few_configs_are_left_out(tools: dict[str, ModuleType]) -> None:
    groups = tools["evaluate_refine"].grouped(np.repeat([3, 1, 2], [12, 4, 10]))
    assert sorted(len(group) for group in groups) == [10, 12]
