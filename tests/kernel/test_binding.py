from dataclasses import replace

import pytest

from kernrec.errors import UsageError
from kernrec.kernel import Pointer, Scalar, Scratch, Space, bind_launches, parse, probe_problems, workspaces
from kernrec.op import find_op

PROBLEM = find_op("matmul").problem(m=100, n=300, k=64)


@pytest.fixture(scope="module")
def config(tiled, ada):
    space = Space(tiled, 89, ada, "f32", "nn")
    row = next(int(i) for i in space.at(PROBLEM).rows if space.config(int(i))["block_m"] == 64)
    return space.config(row) | {"split_k": 1}


def test_unsplit_matmul_needs_one_launch(tiled, config):
    (launch,) = bind_launches(tiled, config, PROBLEM, 89)
    tiles_m, tiles_n = -(-100 // 64), -(-300 // config["block_n"])
    assert launch.entry == "tiled"
    assert launch.grid == (tiles_m * tiles_n, 1, 1)
    assert launch.threads == (64 // config["thread_m"]) * (config["block_n"] // config["thread_n"])
    assert launch.shared_bytes == config["stages"] * config["block_k"] * (64 + config["block_n"]) * 4
    assert launch.trips == {"k_tiles": tiles_m * tiles_n * -(-64 // config["block_k"])}
    assert launch.arguments[:2] == (Pointer("a"), Pointer("b"))
    assert launch.arguments[4:7] == (Scalar("i32", 100), Scalar("i32", 300), Scalar("i32", 64))


def test_workspace_exists_only_if_needed(tiled, config):
    assert workspaces(tiled, config, PROBLEM, 89) == ()
    assert bind_launches(tiled, config, PROBLEM, 89)[0].arguments[3] == Pointer("partial", null=True)
    split = config | {"split_k": 4}
    assert workspaces(tiled, split, PROBLEM, 89) == (Scratch("partial", "f32", 4 * 100 * 300),)
    assert workspaces(tiled, split, PROBLEM, 89)[0].bytes == 4 * 4 * 100 * 300
    first, second = bind_launches(tiled, split, PROBLEM, 89)
    assert first.arguments[3] == second.arguments[0] == Pointer("partial")
    assert (first.index, second.index) == (0, 1)
    assert second.arguments[3] == Scalar("i64", 30_000)


def test_probe_problems_have_full_tiles(tiled, config):
    problems = probe_problems(tiled, 0, config, "f32", "nn", 89)
    assert [p.dim["k"] // config["block_k"] for p in problems] == [4, 6, 9]
    assert all(p.dim["m"] % 64 == 0 for p in problems)
    assert probe_problems(tiled, 1, config, "f32", "nn", 89) == ()


@pytest.mark.parametrize(("ctype", "text"), [("i32", "2 ** 31"), ("u32", "-1"), ("i32", "1 / 2"), ("f32", "dtype")])
def test_scalar_out_of_range_of_its_type_is_refused(tiled, config, ctype, text):
    argument = replace(tiled.launches[0].arguments[4], ctype=ctype, value=parse(text))
    broken = replace(tiled.launches[0], arguments=(argument,))
    with pytest.raises(UsageError, match=rf"argument '{ctype} .*, expected an? (number|integer) from -?\d"):
        bind_launches(replace(tiled, launches=(broken,)), config, PROBLEM, 89)
