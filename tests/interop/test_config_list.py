"""Test that the best configs of other tools become the config list of a Triton function."""

import json
from pathlib import Path

from kernrec.interop.config_list import read_config_list

TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
OPTIONS = {"num_warps": 4, "num_stages": 3}


def written(folder: Path, document: object) -> Path:
    path = folder / "configs.json"
    path.write_text(json.dumps(document))
    return path


def test_tile_names_follow_the_function(tmp_path):
    path = written(tmp_path, {"1": TILES | OPTIONS, "2": TILES | OPTIONS, "4": TILES | OPTIONS | {"BLOCK_SIZE_M": 32}})
    short = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128} | OPTIONS
    source = "def f(a, BLOCK_M, BLOCK_N, BLOCK_K): ..."
    assert read_config_list(path, source) == [short, short | {"BLOCK_M": 32}]
    assert read_config_list(path, f"def f({', '.join(TILES)}): ...")[0] == TILES | OPTIONS


def test_autotune_cache_is_read_as_a_config_list(tmp_path):
    usual = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None}
    times = [[{"kwargs": {"BLOCK": 64}} | usual, [0.5, 0.4, 0.6]]]
    path = written(tmp_path, {"predicted_by": "kernrec", "key": [64], "configs_timings": times})
    assert read_config_list(path, "") == [{"BLOCK": 64, "num_warps": 4, "num_stages": 3}]


def test_file_that_is_not_a_config_list_gives_a_one_line_error(tmp_path, refuses):
    refuses(lambda document: read_config_list(written(tmp_path, document), ""), [[], {}, {"a": 1}, {"results": []}, 3])
