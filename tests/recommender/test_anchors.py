"""Predictions against what real cards did, where the folder of recorded data is at hand."""

import csv
import math
from pathlib import Path

import pytest

from kernrec.recommender import Query, Recommender

ANCHORS = Path(__file__).parents[3] / "shared" / "data" / "anchors"

# 17 x 17 pixels leave a scheduler whose tiles divide the problem little choice; ours guards its edges.
POORLY_TUNED = "17"


@pytest.mark.skipif(not ANCHORS.is_dir(), reason="needs the recorded anchors in ../shared/data")
def test_convolutions_on_the_rtx3090_are_predicted_at_the_level_of_tuned_ones() -> None:
    with (ANCHORS / "conv2d_f32_ansor.csv").open() as file, Recommender([]) as recommender:
        ratios = {}
        for row in csv.DictReader(file):
            dims = {name: int(row[name]) for name in ("n", "c", "h", "w", "k", "r", "s", "stride", "padding")}
            best = recommender.recommend("conv2d", row["gpu"], dims, query=Query("latency", top=1)).best
            ratios[row["h"]] = best.latency_s.value / float(row["best_latency_s"])
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    assert len(ratios) == 8
    assert 0.8 <= mean <= 1.5
    assert {side for side, ratio in ratios.items() if not 0.5 <= ratio <= 2.5} <= {POORLY_TUNED}
