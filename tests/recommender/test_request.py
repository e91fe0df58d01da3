"""Test that requests are validated when they are created."""

import pytest

from kernrec.errors import UsageError
from kernrec.recommender.request import Objective, Query, Request, objective_named


def test_objective_is_converted_on_entry_and_unknown_ones_refused(refuses):
    assert Query("energy").objective is Objective.ENERGY  # type: ignore[arg-type]
    assert objective_named("edp") is Objective.EDP
    refuses(lambda: objective_named("latenzy"))


def test_request_names_an_op_or_a_kernel():
    for names in ({}, {"op": "matmul", "kernel": "matmul_simt"}):
        with pytest.raises(UsageError, match="exactly one"):
            Request("a100", **names)  # type: ignore[arg-type]
    assert Request("a100", "matmul", shape="m=1,n=2,k=3").dims == {"m": 1, "n": 2, "k": 3}
