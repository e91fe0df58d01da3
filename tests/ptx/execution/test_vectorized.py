"""Test that the emulator executes threads and blocks as arrays, whose number does not change the call count."""

from kernrec.kernel import find_kernel
from kernrec.profile.emulated_launch import emulate_config
from tests.helpers.kernel_code import module_of
from tests.helpers.products import matmul, mma_config, whole_numbers
from tests.helpers.trial import unwritten
from tests.helpers.work import calls

KERNEL = find_kernel("matmul_mma")
CONFIG = mma_config(128, 128, 32, 64, 32, vector=8, stages=3)


def calls_for(m: int, k: int) -> int:
    problem = matmul("bf16", "nn", m=m, n=128, k=k)
    module = module_of(KERNEL, CONFIG, "bf16", "nn", 86)
    tensors = whole_numbers(problem) | unwritten(problem)
    return calls(lambda: emulate_config(KERNEL, CONFIG, problem, 86, module, tensors))


def test_two_blocks_on_tensor_cores_take_as_many_calls_as_one():
    for m in (128, 256):  # fill the caches of compiled code and block programs
        calls_for(m, 96)
    once = calls_for(128, 96)
    assert (calls_for(128, 192) - once) / 3 < 2000  # calls per step of 32 along k
    assert calls_for(256, 96) - once < 100
