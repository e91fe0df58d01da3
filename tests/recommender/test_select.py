"""Test that selection obeys the bounds and sorts by the objective."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.estimate.estimates import MEASURED, PRIOR
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.select import select
from tests.helpers.refusals import Refuses


def table(latency: Any, energy: Any, source: Any = None) -> CandidateSet:
    """Return the fields of a candidate set that selection reads, as arrays (points, C)."""
    latency_s, energy_j = np.array(latency, dtype=float), np.array(energy, dtype=float)
    sources = np.full(latency_s.shape, PRIOR) if source is None else np.array(source)
    columns: dict[str, Any] = {"any_measured": bool((sources == MEASURED).any())}
    columns |= {"latency_s": latency_s, "energy_j": energy_j, "latency_source": sources}
    columns["risk"] = None
    columns["power_w"] = energy_j / np.where(np.isinf(latency_s), 1.0, latency_s)
    return cast(CandidateSet, SimpleNamespace(**columns))


def test_each_candidate_is_selected_once_at_its_best_point() -> None:
    candidates = table([[1, 2, 3], [2, 2.5, 3]], [[9, 5, 7], [4, 3, 8]])
    assert select(candidates, Query(Objective.ENERGY)) == [(1, 1), (1, 0), (0, 2)]
    assert select(candidates, Query(Objective.LATENCY, top=2)) == [(0, 0), (0, 1)]
    assert select(candidates, Query(Objective.EDP, top=1)) == [(1, 1)]


def test_front_covers_configs_and_points() -> None:
    candidates = table([[1, 2, 3], [2, 2.5, 3]], [[9, 5, 7], [4, 3, 8]])
    assert select(candidates, Query()) == [(0, 0), (1, 0), (1, 1)]


def test_bounds_are_kept_and_unreachable_ones_refused(refuses: Refuses) -> None:
    candidates = table([[1, 2, 4]], [[400, 400, 100]])
    assert select(candidates, Query(Objective.LATENCY, max_power_w=250.0)) == [(0, 1), (0, 2)]
    assert select(candidates, Query(Objective.ENERGY, max_slowdown=1.0, top=1)) == [(0, 0)]
    refuses(lambda: select(candidates, Query(max_power_w=20.0)))
