"""The library's matrix product in Triton: right in the emulator, and among the answers where profiles are shipped."""

import numpy as np
import pytest

from kernrec.compile import Compiled, compile_many
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.op import Problem, decode_elements, inputs
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.probe_profile import emulate_config
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import parse
from kernrec.recommender import Objective, Query, Recommender, Request
from kernrec.recommender.context import Context

KERNEL = find_kernel("matmul_triton")
SMALL = {"block_m": 32, "block_n": 32, "block_k": 16, "num_stages": 1, "num_warps": 2, "group_m": 8, "aligned": 1}
DEEP = {"block_m": 64, "block_n": 32, "block_k": 32, "num_stages": 5, "num_warps": 8, "group_m": 8, "aligned": 1}
CASES = [
    (SMALL, KERNEL.definition.problem("f16", "nt", m=50, n=80, k=48)),
    (DEEP, KERNEL.definition.problem("f16", "nn", m=41, n=64, k=96)),
]


def _product(config: dict[str, int], problem: Problem, compiled: Compiled) -> tuple[np.ndarray, np.ndarray]:
    """(what the kernel computes, what the op's reference does)."""
    tensors = {name: values.reshape(-1) for name, values in inputs(problem).items()}
    out = problem.tensors["c"]
    tensors["c"] = np.zeros(out.elements, ELEMENTS[out.dtype])
    emulate_config(KERNEL, config, problem, 80, parse(compiled.ptx), tensors)
    values = {
        name: decode_elements(x, problem.dtype).reshape(problem.tensors[name].shape) for name, x in tensors.items()
    }
    expected = problem.definition.reference(problem.sizes, problem.layout, {name: values[name] for name in "ab"})
    return values["c"], expected["c"]


@pytest.mark.slow
def test_it_computes_the_op_in_every_layout() -> None:
    pytest.importorskip("triton", reason="needs the extra `triton`")
    jobs = {compile_job_for(KERNEL, config, problem, 80): (config, problem) for config, problem in CASES}
    for job, compiled in compile_many(jobs, processes=1):
        config, problem = jobs[job]
        assert isinstance(compiled, Compiled), compiled
        result, expected = _product(config, problem, compiled)
        assert np.abs(result - expected).max() <= 2e-3 * np.abs(expected).max(), problem.key


def test_it_is_among_the_answers_where_its_profiles_are_shipped() -> None:
    problem = KERNEL.definition.problem("f16", "nn", m=1024, n=1024, k=1024)
    names = {gpu: [t.kernel.name for t in Context([]).tables(problem, find_gpu(gpu))] for gpu in ("a100", "h100")}
    assert "matmul_triton" in names["a100"]
    assert "matmul_triton" not in names["h100"]


def test_its_configs_are_those_of_the_list_where_the_problem_is_aligned() -> None:
    query = Query(Objective.LATENCY, top=50)
    dims = {"m": 1024, "n": 1024, "k": 1024}
    answer = Recommender([]).answer(Request("a100", None, KERNEL.name, dims, "f16", None, query))
    assert KERNEL.listed is not None
    assert len(answer.choices) == len(KERNEL.listed.rows) == 29
    with pytest.raises(KernrecError):
        Recommender([]).answer(Request("a100", None, KERNEL.name, dims | {"k": 1000}, "f16", None, query))


def test_the_emitted_source_has_its_config_and_its_launch() -> None:
    from kernrec.emit.cuda import emit_cuda

    dims = {"m": 1024, "n": 1024, "k": 1024}
    best = Recommender([]).answer(Request("a100", None, KERNEL.name, dims, "f16", None, Query(Objective.LATENCY))).best
    source = emit_cuda(best)
    compile(source, "emitted.py", "exec")
    assert f"# CONFIG = dict(BLOCK_M={best.config['block_m']}, " in source
    assert f"num_stages={best.config['num_stages']}" in source
