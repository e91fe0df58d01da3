"""A choices handler ranks the configs of TorchInductor's own list of templates, without a GPU."""

from typing import Any

import pytest

from kernrec.errors import KernrecError, KernrecWarning, UsageError

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch._inductor import config, ir  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._inductor.kernel.mm import aten_mm, mm_template  # noqa: E402
from torch._inductor.kernel_inputs import MMKernelInputs  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402

from kernrec.triton import inductor_choices  # noqa: E402
from kernrec.triton.inductor_choices import RankedChoices, config_of  # noqa: E402

M, N, K = 512, 2048, 1024


@pytest.fixture(autouse=True)
def _graph():
    """What Inductor's lists ask for: a graph that is being compiled, with `max_autotune`."""
    graph = GraphLowering(torch.fx.symbolic_trace(lambda: 0))
    with V.set_graph_handler(graph), config.patch(max_autotune=True):
        yield


def product(m: int = M, n: int = N, k: int = K, dtype: Any = torch.float16, strides_b: Any = None) -> MMKernelInputs:
    """The inputs of a product on a GPU that this machine does not have."""

    def matrix(name: str, size: list[int], stride: list[int]) -> Any:
        layout = ir.FixedLayout(torch.device("cuda:0"), dtype, size, stride)
        return ir.TensorBox.create(ir.InputBuffer(name=name, layout=layout))

    return MMKernelInputs([matrix("a", [m, k], [k, 1]), matrix("b", [k, n], strides_b or [n, 1])])


def choices(handler: RankedChoices, inputs: MMKernelInputs) -> list[Any]:
    """What the handler leaves of the library's product and the template's configs."""
    templates = [aten_mm, mm_template]
    listed = {template.uid: handler.get_ktc(inputs, template, "mm") for template in templates}
    return handler._finalize_template_configs(listed, inputs, templates, "mm")


def test_library_matmul_stays_and_templates_are_ranked_by_predicted_time():
    handler = RankedChoices("h100", top_k=3)
    left = choices(handler, product())
    assert [choice.template.uid for choice in left] == ["aten::mm", *["triton::mm"] * 3]
    latencies = handler.latencies(M, N, K, "f16", "nn")
    costs = [latencies[config_of(choice.params.to_kwargs())] for choice in left[1:]]
    listed = choices(RankedChoices("h100", top_k=1000), product())[1:]
    every = sorted(latencies.get(config_of(choice.params.to_kwargs()), float("inf")) for choice in listed)
    assert len(listed) > 10
    assert costs == every[:3]
    assert (handler.ranked, handler.refused) == (1, {})


@pytest.mark.parametrize(("inputs", "reason"), [
    ({"n": 2049, "dtype": torch.float32}, 'it needs "unaligned == 0'),
    ({"dtype": torch.float64}, "no product of torch.float64"),
    ({"strides_b": [2 * N, 2]}, "matrix B has strides 4096 and 2"),
])  # fmt: skip
def test_matmul_that_cannot_be_ranked_is_unchanged_and_reported_once(inputs, reason):
    handler = RankedChoices("h100", top_k=1)
    with pytest.warns(KernrecWarning, match="Inductor's configs are not ranked"):
        left = choices(handler, product(**inputs))
    assert len(left) > 2
    assert reason in next(iter(handler.refused.values()))


def test_untested_pytorch_release_is_refused(monkeypatch):
    monkeypatch.setattr(inductor_choices, "SUPPORTED", ("1.0",))
    with pytest.raises(KernrecError, match=r"PyTorch 2\.\S+ is installed; choices are known of 1.0"):
        RankedChoices("h100")


def test_impossible_values_are_refused():
    with pytest.raises(UsageError, match="top_k is 0"):
        RankedChoices("h100", top_k=0)
    with pytest.raises(UsageError, match="unknown GPU"):
        RankedChoices("h1000x")
    if not torch.cuda.is_available():
        with pytest.raises(KernrecError, match="there is no GPU here"):
            RankedChoices()
