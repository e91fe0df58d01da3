"""`kill -9` of the collector, as `tools/kill_collect.py` does it, a few times."""

import os
from pathlib import Path

import kill_collect
import pytest


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_killed_collectors_lose_no_row_and_repeat_only_their_open_blocks(tmp_path: Path) -> None:
    cost = kill_collect.kill_collect(tmp_path, kills=2, configs=120, latest_s=1.0, seed=1)
    assert cost.lost == 0
    assert cost.rows >= cost.configs == 120
    assert cost.screened_again <= cost.open_rows
