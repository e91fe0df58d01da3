"""Test tuned configs of Triton, PyTorch and serving engines: reading and writing."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.interop.import_results import import_results
from kernrec.interop.moe_configs import TILES, ExpertLayer, read_moe_configs, write_moe_configs
from kernrec.interop.read_results import read_results
from kernrec.interop.triton_results import TEMPLATE, TUNABLES, entry, product_key
from kernrec.op import find_op
from kernrec.store.measurement import Outcome

INFINITY = float("inf")


def config(block: int = 128, **arguments: Any) -> dict[str, Any]:
    usual = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None}
    return {"kwargs": {"BLOCK_M": block, "BLOCK_N": 64}} | usual | arguments


@pytest.fixture
def autotuned(write):
    """Return a function that writes a cache of Triton's autotuner."""
    name = "matmul_kernel.autotune.json"
    return lambda entries: write({"key": [64, "torch.float16"], "configs_timings": entries}, name)


def test_configs_have_their_meta_parameters_and_median_time(autotuned):
    entries = [(config(128), [0.5, 0.4, 0.6]), (config(64, num_warps=8), [INFINITY] * 3)]
    file = read_results(autotuned(entries))
    assert (file.tool, file.kernel, file.device) == ("Triton autotune", "matmul_kernel", None)
    fast, failed = file.results
    assert fast.config == {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    assert fast.latency_s == pytest.approx(0.5e-3)
    assert (failed.outcome, failed.latency_s) == (Outcome.CONSTRAINT, None)


@pytest.mark.parametrize(("entry", "says"), [
    ((config(cluster_dims=[1, 1, 1]), [1, 1, 1]), "other attributes than those of Triton 3.2 to 3.9: cluster_dims"),
    ((config(pre_hook="f"), [1, 1, 1]), "a hook or custom code"),
    ((config(ir_override="mine.ptx"), [1, 1, 1]), "a hook or custom code"),
    ((config(), [0.4, 0.5, 0.6]), "are not median, 20th and 80th percentile"),
    ((config(), 0.4), "expected three times"), ((config(), [INFINITY, 1, 1]), "time is not finite"),
    ((config(), [0.5, -INFINITY, 0.6]), "-Infinity is not a number"),
    ((config(kwargs={"num_warps": 4}), [1, 1, 1]), "num_warps is stated twice"),
    ("config", "expected a list of two items: the attributes of a config, and its times"),
])  # fmt: skip
def test_foreign_cache_is_refused_in_one_line(autotuned, entry, says):
    with pytest.raises(UsageError) as error:
        read_results(autotuned([entry]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_rows_are_stored_as_measured_by_another_tuner(autotuned, database, refuses):
    path = autotuned([(config(block), [0.5, 0.4, 0.6]) for block in (32, 64, 128)])
    problem = find_op("matmul").problem("f16", m=4096, n=4096, k=1024)
    summary = import_results(database, path, problem, "a100")
    assert (summary.kernels[0].kernel, summary.results, summary.added) == ("matmul_kernel", 3, 3)
    assert import_results(database, path, problem, "a100").added == 0
    refuses(lambda: import_results(database, path, problem))


def test_cache_of_the_installed_triton_is_read(tmp_path, monkeypatch):
    triton = pytest.importorskip("triton", reason="needs the extra `triton`")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import autotuner

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    active = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 80, 32))
    monkeypatch.setattr(autotuner, "driver", SimpleNamespace(active=active))
    (tmp_path / "kernels.py").write_text("def scaled(x, BLOCK):\n    pass\n")
    code = compile((tmp_path / "kernels.py").read_text(), str(tmp_path / "kernels.py"), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], ["x"])(
        triton.jit(names["scaled"])
    )
    times = {each: [0.5, 0.4, 0.6] if each.num_warps == 4 else [INFINITY] * 3 for each in tuned.configs}
    tuned.check_disk_cache(("64",), tuned.configs, lambda: setattr(tuned, "configs_timings", times))
    (path,) = tmp_path.rglob("*.autotune.json")
    file = read_results(path)
    assert file.kernel == "scaled"
    assert [result.config for result in file.results] == [
        {"BLOCK": 64, "num_warps": 4, "num_stages": 3},
        {"BLOCK": 128, "num_warps": 8, "num_stages": 3},
    ]
    assert [result.outcome for result in file.results] == [Outcome.OK, Outcome.CONSTRAINT]


CONFIG = dict(zip(TUNABLES, (128, 64, 32, 8, 3, 4), strict=True))
DIMS = {"m": 128, "n": 64, "k": 256}


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


EXPERT = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3
}  # fmt: skip


def as_vllm_reads(text: str) -> dict[int, Any]:
    """Parse a file as vLLM's `get_moe_configs` does. SGLang's version does not remove `triton_version`."""
    document = json.loads(text)
    document.pop("triton_version", None)
    return {int(tokens): config for tokens, config in document.items()}


@given(
    st.dictionaries(
        st.integers(1, 1 << 20),
        st.fixed_dictionaries({name: st.sampled_from([1, 2, 16, 64, 256]) for name in TILES}),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, "3.4.0"]),
)
def test_written_file_is_read_by_vllm_sglang_and_kernrec(configs, version):
    text = write_moe_configs(configs, version)
    assert read_moe_configs(text, "file") == (configs, version)
    assert as_vllm_reads(text) == configs


def test_expert_file_options_for_clusters_tma_and_swap_are_read():
    stated = {name: value for name, value in EXPERT.items() if name != "GROUP_SIZE_M"}
    text = json.dumps(
        {"8": stated | {"num_ctas": 2, "USE_TMA": True, "SWAP_AB": False}, "16": EXPERT | {"num_ctas": 1}}
    )
    configs, _ = read_moe_configs(text, "file")
    assert configs == {8: EXPERT | {"num_ctas": 2, "USE_TMA": 1}, 16: EXPERT}


def test_expert_file_of_another_format_is_refused_in_one_line(refuses):
    refuses(lambda document: read_moe_configs(json.dumps(document), "file.json"), [
        [], {}, {"version": 2, "8": EXPERT}, {"triton_version": "3.4.0"}, {"triton_version": 4, "8": EXPERT},
        {"8": EXPERT | {"USE_TMEM": 1}}, {"8": EXPERT | {"num_ctas": 0}}, {"8": EXPERT | {"SPLIT_K": 0}},
        {"8": EXPERT | {"num_warps": "4"}}, {"8": {"BLOCK_SIZE_M": 16}}, {"8": 3},
    ])  # fmt: skip


def test_file_names_match_what_the_tools_look_for():
    layer = ExpertLayer.parse("e=8,n=7168,m=16,device=NVIDIA H100 80GB HBM3,dtype=fp8_w8a8,block=128x128")
    name = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8"
    assert layer.file_name("vllm") == f"{name},block_shape=[128,128].json"
    assert layer.file_name("sglang") == f"{name},block_shape=[128, 128].json"
    h200 = ExpertLayer.parse("e=8,n=7168,m=1,device=NVIDIA H200 NVL")
    assert h200.file_name("vllm") == "E=8,N=7168,device_name=NVIDIA_H200.json"
    assert h200.file_name("sglang") == "E=8,N=7168,device_name=NVIDIA_H200_NVL.json"


def test_token_count_expression_uses_integer_arguments_of_the_call(refuses):
    layer = ExpertLayer.parse("e=8,n=7168,m=COUNT // 2,device=L4")
    assert layer.tokens_of({"count": 32, "n": 5}) == 16
    refuses(lambda: layer.tokens_of({"counts": 32}))
    refuses(lambda: layer.tokens_of({"count": 1}))


def test_incomplete_expert_layer_is_refused(refuses):
    refuses(lambda text: ExpertLayer.parse(text), [
        "", "e=8,n=7168,m=1", "e=8,n=7168,m=0,device=L4", "experts=8", "e=8,n=1,m=1,device=../../L4",
        "e=8,n=1,m=1,device=L4,block=128",
    ])  # fmt: skip
