"""Questions are checked where they enter."""

import pytest

from kernrec.errors import UsageError
from kernrec.recommender.request import Objective, Query, Request, objective_named


def test_objective_is_converted_on_entry_and_unknown_ones_refused(refuses):
    assert Query("energy").objective is Objective.ENERGY  # type: ignore[arg-type]
    assert objective_named("edp") is Objective.EDP
    refuses(lambda: objective_named("latenzy"))


def test_pareto_front_has_no_single_value(refuses):
    refuses(lambda: Objective.PARETO.value_of(1.0, 2.0))
    assert Objective.PARETO.quantities == Objective.EDP.quantities == ("latency", "energy")


def test_request_names_an_op_or_a_kernel():
    for names in ({}, {"op": "matmul", "kernel": "matmul_simt"}):
        with pytest.raises(UsageError, match="exactly one"):
            Request("a100", **names)  # type: ignore[arg-type]
    assert Request("a100", "matmul", shape="m=1,n=2,k=3").dims == {"m": 1, "n": 2, "k": 3}


def test_top_must_be_a_positive_integer(refuses):
    refuses(lambda top: Query(top=top), ["3", 2.5, 0, None])
