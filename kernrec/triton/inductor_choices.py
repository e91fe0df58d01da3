"""A choices handler for TorchInductor: of a matrix product's Triton templates only the best few by kernrec's ranking.

>>> from torch._inductor.virtualized import V
>>> from kernrec.triton.inductor_choices import RankedChoices
>>> V.set_choices_handler(RankedChoices(gpu="h100", top_k=3))

Inductor lists some twenty configs of its template `triton::mm`, and with `max_autotune` it compiles and measures all of
them. The handler ranks them by what kernrec knows and predicts of `matmul_triton`, which is that template, and leaves
the first few, with the library's product and the other templates as they are. No GPU is needed to rank. This module
imports torch, and is imported by programs that have it.
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
"""Releases of PyTorch that the tests have run with: choices handlers have no interface that is promised to stay."""
KERNEL = "matmul_triton"
_OPS = ("mm",)
_DTYPES = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32"}
_EVERY = 10_000


class RankedChoices(InductorChoices):  # type: ignore[misc]
    """Leaves the best configs of `triton::mm`, the best first.

    Args:
        gpu: as people call it; None: the one of this process.
        top_k: how many configs of the template are left to be compiled and measured; with 1 and without the library's
            product (`max_autotune_gemm_backends`) nothing is measured.

    Raises:
        UsageError: an impossible value, or an unknown GPU.
        KernrecError: a PyTorch that is not known, or no GPU where none is named.
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
        """Products whose configs were ranked."""
        self.refused: dict[str, str] = {}
        """By product: why its configs are not ranked, and are as Inductor lists them."""
        self._recommender = Recommender()

    def uuid(self) -> str:
        """Identifies what is chosen, for Inductor's caches of compiled code."""
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
        """The first configs by predicted latency; those that are not of the kernel's space come after all others."""
        m, n, k = (int(extent) for extent in kernel_inputs.mnk_hinted())
        latencies = self.latencies(m, n, k, dtype_of(kernel_inputs, choices[0]), layout_of(kernel_inputs))
        costs = [latencies.get(config_of(choice.params.to_kwargs()), float("inf")) for choice in choices]
        if not any(cost < float("inf") for cost in costs):
            raise KernrecError(f"none of Inductor's {len(choices)} configs is one of {KERNEL}")
        self.ranked += 1
        order = sorted(range(len(choices)), key=lambda place: costs[place])
        return [choices[place] for place in order[: self.top_k]]

    def latencies(self, m: int, n: int, k: int, dtype: str, layout: str) -> dict[tuple[int, ...], float]:
        """Seconds by config, the values of `TUNABLES`; measured where the database has rows, else predicted.

        Raises:
            KernrecError: the kernel cannot run the product.
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
    """A template's config as the values of `TUNABLES`."""
    return tuple(int(values.get(name, 8)) for name in TUNABLES)


def dtype_of(kernel_inputs: Any, choice: Any) -> str:
    """The data type of a product in kernrec's names; `KernrecError` for one that the kernel does not have."""
    types = {str(dtype) for dtype in kernel_inputs.dtypes()}
    if len(types) != 1 or not types <= _DTYPES.keys():
        raise KernrecError(f"{KERNEL} has no product of {' and '.join(sorted(types))}")
    dtype = _DTYPES[types.pop()]
    return "tf32" if dtype == "f32" and choice.extra_kwargs.get("ALLOW_TF32") else dtype


def layout_of(kernel_inputs: Any) -> str:
    """`nn`, `nt`, `tn` or `tt`; `KernrecError` where a matrix is neither by rows nor by columns."""
    letters = ""
    for name, (rows, columns) in zip("AB", kernel_inputs.strides_hinted()[:2], strict=True):
        if columns == 1:
            letters += "n"
        elif rows == 1:
            letters += "t"
        else:
            raise KernrecError(f"matrix {name} has strides {rows} and {columns}; one of 1 is expected")
    return letters
