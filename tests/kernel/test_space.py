"""Test the space of configs, and binding launches to a problem."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import (
    Expression,
    Kernel,
    Pointer,
    Scalar,
    Scratch,
    Space,
    bind_launches,
    parse,
    probe_problems,
    workspaces,
)
from kernrec.kernel.expression import implication
from kernrec.kernel.spec import Tunable
from kernrec.op import Problem, find_op
from kernrec.util.engine import query
from tests.helpers.depth import few_examples

EASY = find_op("matmul").problem(m=4096, n=4096, k=4096)  # this problem satisfies every constraint
INT64 = st.one_of(st.integers(-8, 8), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 2**62]))


def _texts(operators: list[str], functions: list[str]) -> st.SearchStrategy[str]:
    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            st.tuples(pairs, st.sampled_from(operators)).map(lambda t: f"({t[0][0]} {t[1]} {t[0][1]})"),
            st.tuples(pairs, inner, st.sampled_from(["<", "<=", "==", "!=", ">", ">="])).map(
                lambda t: f"({t[0][0]} {t[2]} {t[0][1]} <= {t[1]})"
            ),
            st.tuples(pairs, st.sampled_from(["and", "or"])).map(lambda t: f"({t[0][0]} {t[1]} {t[0][1]})"),
            inner.map(lambda t: f"(not {t})"),
            inner.map(lambda t: f"(-{t})"),
            st.tuples(inner, pairs).map(lambda t: f"({t[1][0]} if {t[0]} else {t[1][1]})"),
            st.tuples(inner, st.sampled_from(functions)).map(lambda t: f"{t[1]}({t[0]})"),
            st.tuples(pairs, st.sampled_from(["min", "max", "ceil_div"])).map(
                lambda t: f"{t[1]}({t[0][0]}, {t[0][1]})"
            ),
        )

    leaves = st.one_of(st.sampled_from("abc"), st.integers(0, 40).map(str))
    return st.recursive(leaves, grow, max_leaves=12)


INTEGER_TEXTS = _texts(["+", "-", "*", "//", "%", "**"], ["abs", "log2", "power_of_two", "magic_mul", "magic_shift"])


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
    expected = [config for config in configs if not kernel.misfit(config, EASY, limits(sm))]
    assert [space.config(i) for i in range(len(space))] == expected
    assert space.at(EASY).valid.all()


def test_no_config_exceeds_the_block_limits(tiled):
    for sm in (75, 80, 86, 89, 90, 100, 120):
        space = Space(tiled, sm, limits(sm), "f32", "nn")
        launch, here = tiled.launches[0], space.at(EASY)
        assert here.column(launch.threads).max() <= limits(sm).max_threads_per_block
        assert here.column(launch.shared).max() <= limits(sm).smem_per_block


SIZES = st.one_of(st.integers(1, 300), st.sampled_from([512, 1000, 4096, 20_000]))


@few_examples(12)
@given(SIZES, SIZES, SIZES, st.integers(0, 2**32))
def test_launches_are_equal_in_bulk_and_per_config(space, m, n, k, seed):
    kernel, ada, problem = space.kernel, limits(89), matmul(m, n, k)
    here = space.at(problem)
    draw = random.Random(seed)
    rows = np.array(sorted(draw.sample(range(len(space)), 12)))
    for position, row in enumerate(rows):
        config = space.config(int(row))
        assert here.valid[row] == (not kernel.misfit(config, problem, ada))
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
def test_space_finds_only_exactly_equal_configs(space, data):
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


VALUES = {"s": np.array([1, 2, 3]), "t": np.array([4, 8]), "u": np.array([0, 5, 6, 7])}
LETS = {"st": parse("s * t"), "big": parse("st > 8"), "per": parse("ceil_div(m, st)")}


def space_of_values(
    values: dict[str, np.ndarray],
    rows: np.ndarray | None = None,
    lets: dict[str, Expression] | None = None,
    facts: dict[str, object] | None = None,
    conditions: tuple[Expression, ...] = (),
) -> object:
    """Return a space of all combinations of `values`, or only of combinations with the value indices in `rows`."""
    return query.Space(values, rows, lets or {}, facts or {}, [], list(conditions), 10_000)


def column(made: object, expression: str, **names: int) -> object:
    return query.Problem(made, names, {}, False, 0.0, 0.0).column(parse(expression))


def held(made: object, count: int, **names: int) -> list[bool]:
    holds = np.ones(count, dtype=bool)
    query.Problem(made, names, {}, False, 0.0, 0.0).test(holds)
    return holds.tolist()


def test_expression_without_tunables_has_a_value_in_a_space_without_configs():
    made = space_of_values({"s": np.array([1])}, np.zeros((0, 1), np.int64))
    assert column(made, "m / 4", m=2) == 0.5
    assert column(made, "m // 4", m=8) == 2
    assert column(made, "s / m", m=8).tolist() == []


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)), max_size=200),
    st.sampled_from(
        ["s", "7", "m", "st + u", "big + 1", "per * u", "u if big else per", "m // u", "scale * t", "m / u"]
    ),
    st.integers(1, 1000),
)
def test_expressions_are_equal_in_bulk_and_per_config(rows, text, m):
    digits = np.array(rows, dtype=np.int64).reshape(-1, 3)
    result = np.broadcast_to(column(space_of_values(VALUES, digits, LETS, {"scale": 3}), text, m=m), len(rows))
    for i, row in enumerate(rows):
        names = {name: int(VALUES[name][row[j]]) for j, name in enumerate("stu")} | {"m": m, "scale": 3}
        for name, let in LETS.items():
            names[name] = int(let.evaluate(names))
        assert result[i] == parse(text).evaluate(names)


@few_examples(60)
@given(
    st.lists(INTEGER_TEXTS, min_size=1, max_size=4),
    st.lists(INT64, min_size=1, max_size=3, unique=True),
    st.lists(INT64, min_size=1, max_size=4, unique=True),
    INT64,
)
@example(["(a // c)", "(a % c)", "(c // a)", "(c % a)"], [-(2**63), 2**63 - 1, 7, -7], [1], -1)
@example(["(a // c)", "(a % c)", "(b ** c)", "abs(c)"], [-(2**63), 2**63 - 1, 7, -7], [-3, 5], 0)
@example(["magic_mul(c)", "magic_shift(c)", "(a // b <= c)"], [5, 9], [2, 0], 2**31)
def test_random_expressions_are_equal_in_bulk_and_per_config(texts, a, b, c):
    values, lets = {"a": np.array(a), "b": np.array(b)}, {"let": parse(texts[0])}
    conditions = (implication(parse("a > c"), parse(f"{texts[0]} > 0")), parse("let != b"))
    made = space_of_values(values, None, lets, {}, conditions)
    configs = [{"a": x, "b": y, "c": c} for x in a for y in b]
    names = [config | {"let": int(lets["let"].evaluate(config))} for config in configs]
    assert held(made, len(configs), c=c) == [all(each.evaluate(here) for each in conditions) for here in names]
    for text in (*texts, f"let + {texts[-1]}", f"({texts[-1]}) + c > b"):
        expected = [parse(text).evaluate(here) for here in names]
        np.testing.assert_array_equal(np.broadcast_to(column(made, text, c=c), len(configs)), expected, text)


def test_text_used_as_a_number_is_refused_in_one_line():
    made = space_of_values({"s": VALUES["s"]}, facts={"dtype": "f32"})
    with pytest.raises(ValueError, match="expression 's \\* dtype': text 'f32' where a number is expected"):
        column(made, "s * dtype")
    with pytest.raises(ValueError, match="expression 's \\* m' needs m"):
        column(made, "s * m")
    assert column(made, "m if dtype == 'f32' else 0", m=3) == 3


def test_circular_definitions_are_refused():
    lets = {"a": parse("b + 1"), "b": parse("a + 1")}
    with pytest.raises(ValueError, match="nested too deeply"):
        column(space_of_values({}, None, lets), "a")


PROBLEM = find_op("matmul").problem(m=100, n=300, k=64)


@pytest.fixture(scope="module")
def config(tiled, ada):
    space = Space(tiled, 89, ada, "f32", "nn")
    row = next(int(i) for i in space.at(PROBLEM).rows if space.config(int(i))["block_m"] == 64)
    return space.config(row) | {"split_k": 1}


def test_matmul_without_split_k_needs_one_launch(tiled, config):
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


def test_profiling_problems_have_only_full_tiles(tiled, config):
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
