import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import Expression, Kernel, Space, bind_launches, parse
from kernrec.kernel.spec import Tunable
from kernrec.op import Problem, find_op
from tests.helpers.depth import few_examples

EASY = find_op("matmul").problem(m=4096, n=4096, k=4096)  # satisfies every constraint on problems


@pytest.fixture(scope="module")
def space(tiled, ada):
    return Space(tiled, 89, ada, "f32", "nn")


def matmul(m: int, n: int, k: int) -> Problem:
    return find_op("matmul").problem(m=m, n=n, k=k)


def _reduced(kernel: Kernel) -> Kernel:
    """Keep at most two values per tunable, so that brute force can enumerate all configs."""
    tunables = tuple(Tunable(t.name, t.values[-2:], t.meaning, t.launch) for t in kernel.tunables)
    return replace(kernel, tunables=tunables)


@pytest.mark.parametrize("sm", [75, 80, 89])
def test_space_is_the_product_of_values_that_satisfy_the_constraints(tiled, sm):
    kernel = _reduced(tiled)
    space = Space(kernel, sm, limits(sm), "f32", "nn")
    names = [t.name for t in kernel.tunables]
    configs = [dict(zip(names, row, strict=True)) for row in itertools.product(*(t.values for t in kernel.tunables))]
    expected = [config for config in configs if kernel.fits(config, EASY, limits(sm))]
    assert [space.config(i) for i in range(len(space))] == expected
    assert space.valid(EASY).all()


def test_no_config_exceeds_the_block_limits(tiled):
    for sm in (75, 80, 86, 89, 90, 100, 120):
        space = Space(tiled, sm, limits(sm), "f32", "nn")
        launch, here = tiled.launches[0], space.at(EASY)
        assert here.column(launch.threads).max() <= limits(sm).max_threads_per_block
        assert here.column(launch.shared).max() <= limits(sm).smem_per_block


SIZES = st.one_of(st.integers(1, 300), st.sampled_from([512, 1000, 4096, 20_000]))


@few_examples(12)
@given(SIZES, SIZES, SIZES, st.integers(0, 2**32))
def test_columns_match_the_values_of_each_config(space, m, n, k, seed):
    kernel, ada, problem = space.kernel, limits(89), matmul(m, n, k)
    here = space.at(problem)
    draw = random.Random(seed)
    rows = np.array(sorted(draw.sample(range(len(space)), 12)))
    for position, row in enumerate(rows):
        config = space.config(int(row))
        assert here.valid[row] == kernel.fits(config, problem, ada)
        alone = kernel.namespace(config, problem, 89)

        def value(expression: Expression, position: int = position) -> object:
            return _at(here.column(expression, rows), position)

        assert {name: value(let) for name, let in kernel.lets.items()} == {name: alone[name] for name in kernel.lets}
        bound = {launch.index: launch for launch in bind_launches(kernel, config, problem, 89)}
        for index, launch in enumerate(kernel.launches):
            assert (launch.when is None or value(launch.when)) == (index in bound)
            if index not in bound:
                continue
            assert tuple(map(value, launch.grid)) == bound[index].grid
            assert tuple(map(value, launch.block)) == bound[index].block
            assert (value(launch.blocks), value(launch.threads)) == (bound[index].blocks, bound[index].threads)
            assert value(launch.shared) == bound[index].shared_bytes
            assert {loop: value(count) for loop, count in launch.trips.items()} == bound[index].trips
            others = [*launch.depth.values(), launch.prefetch, *(extent for _, extent in launch.order)]
            assert [value(expression) for expression in others] == [e.evaluate(alone) for e in others]


def _at(column: object, row: int) -> object:
    return column[row].item() if isinstance(column, np.ndarray) else column


def test_configs_share_code_exactly_if_only_run_time_tunables_differ(tiled, space):
    codes = space.variants
    assert len(codes.keys) == len(set(codes.keys)) == len(codes.rows) == codes.index.max() + 1
    assert codes.rows.tolist() == [codes.index.tolist().index(code) for code in range(len(codes.rows))]
    for row in random.Random(1).sample(range(len(space)), 50):
        assert codes.keys[codes.index[row]] == tiled.variant_key(space.config(row), "f32", "nn")


def test_space_refuses_a_problem_of_another_op_dtype_or_layout(space):
    refused = {
        "does not belong to the space of": (
            find_op("matmul").problem(m=1, n=1, k=1, dtype="f16"),
            find_op("matmul").problem(m=1, n=1, k=1, layout="nt"),
        ),
        "kernel tiled computes matmul, not conv2d": (find_op("conv").problem(c=1, h=9, w=9, k=1),),
    }
    for message, problems in refused.items():
        for problem in problems:
            with pytest.raises(UsageError, match=message):
                space.at(problem)


def test_impossible_constraint_gives_an_empty_space(tiled, ada):
    space = Space(replace(tiled, constraints=(parse("block_m > 1000"),)), 89, ada, "f32", "nn")
    assert len(space) == 0
    assert len(space.at(EASY).rows) == 0
    assert space.variants.keys == []


def test_unbounded_space_is_refused_before_memory_runs_out(tiled, ada):
    tunables = tuple(Tunable(f"t{i}", tuple(range(64)), "") for i in range(30))
    endless = replace(tiled, tunables=tunables, constraints=(), implied=(), lets={})
    with pytest.raises(UsageError, match="the space of tiled has over 4000000 configs already at t3"):
        Space(endless, 89, ada, "f32", "nn")


@few_examples(15)
@given(st.data())
def test_config_is_found_only_in_its_row(space, data):
    row = data.draw(st.integers(0, len(space) - 1))
    config = space.config(row)
    name = data.draw(st.sampled_from(sorted(config)))
    other = config | {name: data.draw(st.sampled_from(next(t.values for t in space.kernel.tunables if t.name == name)))}
    missing = {key: value for key, value in config.items() if key != name}
    found_rows = space.find([config, other, config | {name: 12345}, missing, config | {"more": 1}]).tolist()
    assert found_rows[0] == row
    assert found_rows[1] == -1 or space.config(found_rows[1]) == other
    assert found_rows[2:] == [-1, -1, -1]
    assert space.find([]).tolist() == []
