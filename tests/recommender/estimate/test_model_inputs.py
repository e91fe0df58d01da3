"""Test the inputs of a model for candidates."""

import numpy as np

from kernrec.gpu import GPU, find_gpu
from kernrec.model.learn.features import matrix, names
from kernrec.op import Problem, find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.model_inputs import ModelCandidates, inputs_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.rank import candidate_set
from kernrec.store import Evidence


def table_of_simt(recommender: Recommender, problem: Problem, gpu: GPU) -> StaticTable:
    return next(t for t in recommender.context.tables(problem, gpu) if t.kernel.name == "matmul_simt")


def test_cached_features_equal_computed_ones():
    gpu = find_gpu("rtx4090")
    recommender = Recommender([])
    for m in (512, 1000):
        problem = find_op("matmul").problem(m=m, n=256, k=384)
        table = table_of_simt(recommender, problem, gpu)
        (kernel,) = candidate_set([table], problem, [DEFAULT_POINT], Evidence()).kernels
        positions = np.arange(0, len(kernel.rows), 7)
        inputs = inputs_of(kernel.prediction, kernel.limited.at(0), positions)
        for columns in (names([*inputs.tunables, "of_another_kernel"]), names(), names(["block_m"])[::-1]):
            cached = ModelCandidates(kernel.prediction, kernel.limited.at(0).costs, positions).features(columns)
            expected = matrix(inputs, columns)
            assert cached.dtype == expected.dtype
            np.testing.assert_array_equal(cached, expected)
