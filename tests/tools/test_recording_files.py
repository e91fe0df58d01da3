"""Test that rows and powers that training excludes do not ship either."""

import pytest
from evidence.recordings.files import EXCLUSIONS, excluded, parquet_dicts, power_of

from tests.helpers.paths import RECORDINGS, ROOT

SHIPPED = ROOT / "db/prebuilt/recorded"
ABSENT = {
    "attention": (
        "gpu = 'l40s' AND kernel = 'flash_attention'",
        "gpu = 'b200' AND stack = 'SGLang' AND queries > 1",
        "power_w > 0 AND latency_s < 4.99e-4",
    ),
    "softmax": ("gpu LIKE 'p100%'",),
    "layernorm": ("gpu LIKE 'p100%'",),
    "matmul": ("gpu = 'h200-sxm' AND power_w > 0 AND m = 128", "gpu = 'b200' AND stack = 'vLLM' AND m = 96 AND n = 2560"
               " AND k = 10240 AND power_w > 0 AND latency_s < 1e-4"),
}  # fmt: skip


@pytest.mark.parametrize(("op", "condition"), [(op, each) for op, every in ABSENT.items() for each in every])
def test_excluded_rows_and_powers_do_not_ship(op, condition):
    assert parquet_dicts(SHIPPED / f"{op}.parquet", condition, "count(*) AS n") == [{"n": 0}]


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="needs the recordings in ../shared/data")
@pytest.mark.parametrize("each", EXCLUSIONS, ids=lambda each: f"{each.file}-{each.rows[:30]}")
def test_every_exclusion_matches_rows(each):
    path = RECORDINGS / "library" / f"{each.file}.parquet"
    kept_rows = parquet_dicts(path, f"NOT ({excluded(each.file)})", "count(*) AS n")[0]["n"]
    excluded_rows = parquet_dicts(path, each.rows, "count(*) AS n")[0]["n"]
    assert 0 < excluded_rows < kept_rows


def test_file_without_exclusions_stays_complete():
    assert excluded("serving_moe") == "false"
    assert power_of("serving_moe", "watts") == "CASE WHEN false THEN NULL ELSE watts END"
