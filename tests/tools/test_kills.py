"""`kill -9` of commands, as `tools/kills.py` does it, a few times."""

import os
from pathlib import Path

import kills
import pytest


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_killed_collectors_lose_no_row_and_repeat_only_their_open_blocks(tmp_path: Path) -> None:
    cost = kills.kill_collect(tmp_path, kills=2, configs=120, latest_s=1.0, seed=1)
    assert cost.lost == 0
    assert cost.rows >= cost.configs == 120
    assert cost.screened_again <= cost.open_rows


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_a_killed_merge_adds_everything_or_nothing(tmp_path: Path) -> None:
    done = kills.kill_add(tmp_path, "merge", kills=2, rows=200, seed=3)
    assert done.kills + done.ended == 2
    assert (done.lost, done.halved, done.unreadable) == (0, 0, 0)
