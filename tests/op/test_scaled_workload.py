"""Test that a workload's work scales with its batch and is divided among GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.op import find_op
from kernrec.op.scaled_workload import as_tensor_parallel, with_batch
from kernrec.op.workload import Layer, Workload, workload, workloads

SPLIT = ("llama-3-8b-prefill", "llama-3-70b-decode", "llama-3-70b-prefill", "qwen3-30b-a3b-prefill", "vit-l-16")


@given(st.sampled_from(workloads()), st.integers(1, 24))
def test_batch_flops_equal_the_sum_of_its_items(name, batch):
    single = workload(name)
    assert with_batch(single, batch).flops == batch * single.flops


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("gpus", [2, 4])
def test_tensor_parallel_matmuls_add_up_to_the_network(name, gpus):
    whole, part = workload(name), as_tensor_parallel(workload(name), gpus)
    for before, after in zip(whole.layers, part.layers, strict=True):
        divided = before.split or before.problem.op == "moe"
        assert after.problem.flops * (gpus if divided else 1) == before.problem.flops
    linear = [layer for layer in whole.layers if layer.problem.op in ("matmul", "matvec", "moe", "attention")]
    router = [layer.name for layer in linear if not layer.split and layer.problem.op != "moe"]
    assert router in ([], ["mlp gate (router)"])
    assert part.title.endswith(f", one of {gpus} GPUs")


def test_unscalable_workload_is_refused(refuses):
    refuses(lambda: as_tensor_parallel(workload("vit-l-16"), 3))
    refuses(lambda: as_tensor_parallel(workload("resnet50"), 2))
    refuses(lambda: with_batch(workload("resnet50"), 0))
    odd = Workload("x", "x", "", (Layer("a", find_op("softmax").problem(rows=3, columns=8), 1),), batch=2)
    refuses(lambda: with_batch(odd, 1))
