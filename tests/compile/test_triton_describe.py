"""Test that a grid function can use only names of the config and of the arguments."""

from types import SimpleNamespace

import pytest

from kernrec.compile.triton_describe import describe
from kernrec.errors import UsageError


def parameter(name: str, constant: bool) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, is_constexpr=constant, has_default=False, default=None, annotation_type="",
        do_not_specialize=False, do_not_specialize_on_alignment=False,
    )  # fmt: skip


FUNCTION = SimpleNamespace(params=[parameter("n", False), parameter("BLOCK", True)], cache_key="")


def grid(meta: dict[str, int]) -> tuple[int]:
    return (meta["n"] // meta["BLOCK"],)


def described(**config: int) -> dict:
    return {"arguments": {"n": 64}, "configs": [config]}


def test_grid_with_an_unknown_name_is_refused_in_one_line():
    with pytest.raises(UsageError, match="the grid uses 'BLOCK', which is neither an argument nor in the config"):
        describe(FUNCTION, grid, described(num_warps=4))


def test_config_with_an_unknown_name_is_described_without_its_grid():
    (config,) = describe(FUNCTION, grid, described(BLOCKS=16))["configs"]
    assert config == {"constants": {"BLOCKS": 16}, "options": {}, "grid": None}
    (config,) = describe(FUNCTION, grid, described(BLOCK=16))["configs"]
    assert config["grid"] == [4, 1, 1]
