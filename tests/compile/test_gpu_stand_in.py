"""Test that torch without a GPU shows the requested GPU. The tests are skipped without PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from kernrec.compile.gpu_stand_in import torch_without_gpu  # noqa: E402
from kernrec.errors import KernrecWarning, UsageError  # noqa: E402
from kernrec.gpu import find_gpu  # noqa: E402

if torch.cuda.is_available():
    pytest.skip("this machine has a GPU", allow_module_level=True)


@pytest.fixture
def x():
    with torch_without_gpu(find_gpu("h100")):
        yield torch.arange(4.0, device="cuda")


@pytest.mark.usefixtures("x")
def test_torch_reports_the_stand_in_gpu():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name("cuda:0") == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert torch.cuda.mem_get_info()[1] == torch.cuda.get_device_properties(0).total_memory
    assert torch.cuda.device("cuda:0").idx == 0
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert (start.elapsed_time(end), start.query()) == (0.0, True)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        assert graph.pool() == (0, 1)


def test_stand_in_gpu_tensors_compute_on_the_cpu(x):
    assert x.is_cuda
    assert x.device == torch.device("cuda", 0)
    with torch.cuda.device_of(x), torch.cuda.device(x.device):
        assert (2 * x.cuda().pin_memory()).tolist() == [0, 2, 4, 6]
    assert torch.nn.Linear(2, 2).to("cuda").weight.get_device() == 0
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    generator = torch.Generator(device="cuda")
    assert isinstance(generator, torch.Generator)
    assert generator.device.type == "cuda"
    torch.cuda.manual_seed_all(3)
    first = torch.rand(3, device="cuda")
    torch.manual_seed(3)
    torch.testing.assert_close(torch.rand(3), first)
    assert torch.rand(2, device="cuda", generator=generator).shape == (2,)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).dtype == torch.bfloat16
    halves = torch.full((2, 2), 0.5, dtype=torch.bfloat16, device="cuda")
    assert torch.mm(halves, halves, out_dtype=torch.float32).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    allocated = torch._C._dynamo.guards._empty_strided_cuda((2, 3), (1, 2), torch.float16)
    assert (allocated.stride(), allocated.dtype) == ((1, 2), torch.float16)


def test_backward_pass_receives_stand_in_gpu_tensors(x):
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return 2 * value

        @staticmethod
        def backward(context, gradient):
            seen.append(torch.empty(1, device="cuda").is_cuda and gradient.is_cuda)
            return 2 * gradient

    Twice.apply(x.requires_grad_()).sum().backward()
    assert seen == [True]
    assert x.grad.tolist() == [2, 2, 2, 2]


def test_custom_cuda_operator_receives_stand_in_gpu_tensors(x):
    @torch.library.custom_op("kernrec_test::twice", mutates_args=(), device_types="cuda")
    def twice(value: torch.Tensor) -> torch.Tensor:
        assert value.is_cuda
        return 2 * value

    assert twice(x).tolist() == [0, 2, 4, 6]


def test_torch_is_restored_after_the_gpu_stand_in():
    real = torch.Generator
    with torch_without_gpu(find_gpu("a100")):
        assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.Generator is real
    assert not torch.cuda.is_available()
    assert not torch.zeros(1).is_cuda
    with pytest.raises(RuntimeError):
        torch.zeros(1, device="cuda")


def test_untested_pytorch_runs_if_no_function_is_missing(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.1.0+cu140")
    with pytest.warns(KernrecWarning, match=r"PyTorch 9\.1\.0 was not tested"), torch_without_gpu(find_gpu("h100")):
        assert torch.zeros(2, device="cuda").is_cuda
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    with (
        pytest.raises(UsageError, match=r"PyTorch 9\.1\.0 has no torch\.autograd\._engine_run_backward"),
        torch_without_gpu(find_gpu("h100")),
    ):
        pass
