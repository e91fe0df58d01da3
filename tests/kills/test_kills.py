"""Test that killed commands lose no acknowledged row and leave no partial writes in a database. Each command is killed
`KERNREC_KILLS` times (default 2, or 250 with `--deep`), at moments seeded by `KERNREC_KILLS_SEED`."""

import os

import pytest

from tests.helpers.depth import DEEP
from tests.kills.adding import kill_add, kill_collect, kill_merge_by_clocks
from tests.kills.changing import kill_contribute, kill_migration, kill_train, kill_withdraw
from tests.kills.sharing import kill_sharing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="kills process groups")]
KILLS = int(os.environ.get("KERNREC_KILLS", "250" if DEEP else "2"))
SEED = int(os.environ.get("KERNREC_KILLS_SEED", "1"))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "strategy", ["all", pytest.param("refine", marks=pytest.mark.deep), pytest.param("genetic", marks=pytest.mark.deep)]
)
def test_killed_collector_loses_no_row_and_repeats_only_its_open_blocks(tmp_path, strategy):
    configs = 3000 if DEEP else 120
    cost = kill_collect(tmp_path, KILLS, configs, SEED, strategy)
    assert (cost["lost"], cost["doubled"]) == (0, 0)
    assert cost["rows"] >= (128 if strategy == "refine" else configs)  # no predictions: configs are sampled


@pytest.mark.every(2)
@pytest.mark.parametrize("command", ["merge", pytest.param("import", marks=pytest.mark.deep)])
def test_killed_merge_or_import_adds_everything_or_nothing(command, tmp_path):
    counts = kill_add(tmp_path, command, KILLS, 3000 if DEEP else 200, SEED + 2)
    assert (counts["lost"], counts["halved"], counts["unreadable"]) == (0, 0, 0)


def test_killed_merges_lose_no_answer_while_the_clock_changes(tmp_path):
    counts = kill_merge_by_clocks(tmp_path, KILLS, SEED)
    assert (counts["lost"], counts["halved"], counts["unreadable"]) == (0, 0, 0)


@pytest.mark.every(2)
@pytest.mark.parametrize("kill", [kill_withdraw, kill_migration, pytest.param(kill_train, marks=pytest.mark.deep)])
def test_killed_database_changes_lose_no_row_or_model(kill, tmp_path):
    counts = kill(tmp_path, KILLS, SEED)
    assert sum(counts[each] for each in ("lost", "doubled", "halved", "unreadable")) == 0, counts


@pytest.mark.deep
def test_killed_contribute_loses_no_row_and_bundles_none_twice(tmp_path):
    counts = kill_contribute(tmp_path, KILLS, SEED)
    assert (counts["lost"], counts["doubled"], counts["refused"]) == (0, 0, 0)
    assert counts["bundles"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("command", ["push", "pull"])
def test_killed_push_and_pull_expose_only_complete_bundles(command, tmp_path):
    counts = kill_sharing(tmp_path, command, KILLS, 3000, SEED)
    assert (counts["lost"], counts["doubled"], counts["halved"], counts["unreadable"]) == (0, 0, 0, 0)
