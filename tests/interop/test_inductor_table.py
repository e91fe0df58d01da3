"""Test that PyTorch reads the Inductor lookup tables that kernrec writes, and that kernrec refuses invalid tables."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kernrec.interop.inductor_table import TEMPLATE, TUNABLES, entry, product_key, read_table

CONFIG = dict(zip(TUNABLES, (128, 64, 32, 8, 3, 4), strict=True))
DIMS = {"m": 128, "n": 64, "k": 256}


def table(key: str | None = None, **changed: Any) -> str:
    config = entry(CONFIG, 256, "f16") | changed
    return json.dumps({key or product_key(DIMS, "f16", "nn"): [config]})


def test_written_table_reads_back():
    assert read_table(table(), "file") == {product_key(DIMS, "f16", "nn"): [CONFIG]}


def test_other_templates_are_skipped_and_keys_may_include_devices_and_scalars():
    key = f"NVIDIA H100+{product_key(DIMS, 'f16', 'tn').removesuffix('+mm')}+alpha=1&beta=1+addmm"
    assert read_table(table(key), "file") == {key: [CONFIG]}
    assert read_table(json.dumps({key: [{"template_id": "aten::bias_addmm"}]}), "file") == {key: []}


def test_other_format_is_refused_in_one_line(refuses):
    refuses(lambda text: read_table(text, "file"), [
        "{}", "[]", table("mm"), table("((" + "torch.bfloat16" * 40 + "[512, 96]))+mm"), table(SPLIT=2),
        table(BLOCK_M=0), table(num_warps="4"), table(template_id=3), json.dumps({product_key(DIMS, "f16", "nn"): 3}),
        table()[:-4], table() + "x",
    ])  # fmt: skip


def test_installed_pytorch_reads_the_entries():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    reader = pytest.importorskip("torch._inductor.lookup_table", reason="needs PyTorch 2.10 or later")
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
    m, n, k = DIMS.values()
    cases = [(dtype, layout) for dtype in types for layout in ("nn", "nt", "tn", "tt")]
    written = {product_key(DIMS, dtype, layout): [entry(CONFIG, k, dtype)] for dtype, layout in cases}

    class Here(reader.LookupTableChoices):  # type: ignore[misc]
        """PyTorch's lookup, with the written table and a pretended A100."""

        def _get_lookup_table(self) -> Any:
            return json.loads(json.dumps(written))

        @staticmethod
        def _get_device_key(device: Any) -> str:
            return "NVIDIA A100"

    for dtype, layout in cases:
        a = torch.empty(k, m).t() if layout[0] == "t" else torch.empty(m, k)
        b = torch.empty(n, k).t() if layout[1] == "t" else torch.empty(k, n)
        shapes, strides = (tuple(a.shape), tuple(b.shape)), (a.stride(), b.stride())
        inputs = SimpleNamespace(
            _scalars={},
            device=lambda: torch.device("cuda"),
            dtypes=lambda dtype=dtype: (types[dtype],) * 2,
            shapes_hinted=lambda shapes=shapes: shapes,
            strides_hinted=lambda strides=strides: strides,
        )
        inputs.shapes_autotune, inputs.strides_autotune = inputs.shapes_hinted, inputs.strides_hinted  # newer PyTorch
        ((template, (chosen,)),) = Here().lookup_template_configs(inputs, "mm", [TEMPLATE, "aten::mm"]).items()
        assert template == TEMPLATE
        assert {name: chosen[name] for name in TUNABLES} == CONFIG
        assert (chosen["EVEN_K"], chosen["ALLOW_TF32"]) == (True, dtype == "tf32")
