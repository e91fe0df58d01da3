"""Define a choices handler for TorchInductor that keeps only the best few Triton configs of a matmul.

>>> from torch._inductor.virtualized import V >>> from kernrec.triton.inductor_choices import RankedChoices >>>
V.set_choices_handler(RankedChoices(gpu="h100", top_k=3))

Inductor lists about twenty configs of its template `triton::mm`; with `max_autotune`, it compiles and measures all of
them. The handler ranks them by the measured or predicted cost of `matmul_triton`, which is the same template. It keeps
the best few, and does not change the library's matmul or other templates. Ranking needs no GPU. This module imports
torch.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor.choices import InductorChoices

from kernrec.errors import KernrecError, KernrecWarning, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.inductor_table import TEMPLATE, TUNABLES
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.request import Objective

SUPPORTED = ("2.13",)
"""Tested releases of PyTorch. The interface of choices handlers is not stable."""
KERNEL = "matmul_triton"
_OPS = ("mm",)
_DTYPES = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32"}
_EVERY = 10_000


class RankedChoices(InductorChoices):  # type: ignore[misc]
    """Keeps the best configs of `triton::mm`, best first.

    Args:
        gpu: Common name of the GPU; None for the GPU of this process.
        top_k: Number of the template's configs to compile and measure. If it is 1 and the library's matmul is disabled
            (`max_autotune_gemm_backends`), Inductor measures nothing.

    Raises:
        UsageError: A value is impossible, or the GPU is unknown.
        KernrecError: PyTorch's version is not supported, or no GPU is named or present.
    """

    def __init__(self, gpu: str | None = None, top_k: int = 3) -> None:
        super().__init__()
        release = ".".join(torch.__version__.split(".")[:2])
        if release not in SUPPORTED:
            tested = ", ".join(SUPPORTED)
            raise KernrecError(
                f"PyTorch {torch.__version__} is installed; choices are known of {tested}, and not of it"
            )
        if type(top_k) is not int or top_k < 1:
            raise UsageError(f"top_k is {top_k!r:.40}; a whole number from 1 is expected")
        if gpu is None and not torch.cuda.is_available():
            raise KernrecError("there is no GPU here: name one with gpu= to rank configs for it")
        self.card: GPU = find_gpu(gpu if gpu is not None else torch.cuda.get_device_name())
        self.top_k = top_k
        self.ranked = 0
        """Number of matmuls whose configs were ranked."""
        self.refused: dict[str, str] = {}
        """For each matmul whose configs were not ranked, the reason; these keep Inductor's list."""
        self._recommender = Recommender()

    def uuid(self) -> str:
        """Return an identity of the selection for Inductor's caches of compiled code."""
        return f"kernrec {self.card.name} {self.top_k}"

    def _finalize_template_configs(
        self,
        template_choices: Mapping[str, Any],
        kernel_inputs: Any,
        templates: Sequence[Any],
        op_name: str,
        kwarg_overrides: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        listed = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, kwarg_overrides
        )
        configs = [choice for choice in listed if choice.template.uid == TEMPLATE]
        if op_name not in _OPS or len(configs) < 2:
            return list(listed)
        others = [choice for choice in listed if choice.template.uid != TEMPLATE]
        try:
            return others + self._best(kernel_inputs, configs)
        except KernrecError as error:
            m, n, k = kernel_inputs.mnk_hinted()
            self._refuse(f"{m}x{n}x{k}", error)
            return list(listed)

    def _best(self, kernel_inputs: Any, choices: Sequence[Any]) -> list[Any]:
        """Return the first configs by predicted latency. Configs outside the kernel's space come last."""
        m, n, k = (int(extent) for extent in kernel_inputs.mnk_hinted())
        latencies = self.latencies(m, n, k, dtype_of(kernel_inputs, choices[0]), layout_of(kernel_inputs))
        costs = [latencies.get(config_of(choice.params.to_kwargs()), float("inf")) for choice in choices]
        if not any(cost < float("inf") for cost in costs):
            raise KernrecError(f"none of Inductor's {len(choices)} configs is one of {KERNEL}")
        self.ranked += 1
        order = sorted(range(len(choices)), key=lambda place: costs[place])
        return [choices[place] for place in order[: self.top_k]]

    def latencies(self, m: int, n: int, k: int, dtype: str, layout: str) -> dict[tuple[int, ...], float]:
        """Return seconds by config (values of `TUNABLES`): measured if the database has rows, else predicted. Raises
        `KernrecError` if the kernel cannot run the matmul.
        """
        query = Query(Objective.LATENCY, power_limit_w=self.card.tdp_w, top=_EVERY, each_config=True)
        dims = {"m": m, "n": n, "k": k}
        request = Request(self.card.name, None, KERNEL, dims, dtype, layout, query)
        choices = self._recommender.answer(request).choices
        return {
            tuple(int(choice.config.get(name.lower(), 8)) for name in TUNABLES): float(choice.latency_s.value)
            for choice in choices
        }

    def _refuse(self, product: str, error: KernrecError) -> None:
        if product not in self.refused:
            self.refused[product] = str(error)
            warnings.warn(f"{product}: Inductor's configs are not ranked: {error}", KernrecWarning, stacklevel=2)


def config_of(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a template's config as values of `TUNABLES`."""
    return tuple(int(values.get(name, 8)) for name in TUNABLES)


def dtype_of(kernel_inputs: Any, choice: Any) -> str:
    """Return the data type of a matmul in kernrec's names. Raises `KernrecError` if the kernel does not support the
    type.
    """
    types = {str(dtype) for dtype in kernel_inputs.dtypes()}
    if len(types) != 1 or not types <= _DTYPES.keys():
        raise KernrecError(f"{KERNEL} has no product of {' and '.join(sorted(types))}")
    dtype = _DTYPES[types.pop()]
    return "tf32" if dtype == "f32" and choice.extra_kwargs.get("ALLOW_TF32") else dtype


def layout_of(kernel_inputs: Any) -> str:
    """Return `nn`, `nt`, `tn` or `tt`. Raises `KernrecError` if a matrix is stored neither by rows nor by columns."""
    letters = ""
    for name, (rows, columns) in zip("AB", kernel_inputs.strides_hinted()[:2], strict=True):
        if columns == 1:
            letters += "n"
        elif rows == 1:
            letters += "t"
        else:
            raise KernrecError(f"matrix {name} has strides {rows} and {columns}; one of 1 is expected")
    return letters
