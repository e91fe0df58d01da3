"""Test that other tools read the emitted tables, and that kernrec refuses an answer that a format cannot express."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrec.emit import emit
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.interop.triton_results import TEMPLATE, TUNABLES
from kernrec.recommender import Query, Recommender, Request
from kernrec.recommender.result import Answer
from tests.helpers.command import run_here
from tests.helpers.paths import ROOT, beside

pytestmark = pytest.mark.usefixtures("compiled_here")

KERNELS = ROOT / "tests" / "triton" / "tuned_products.py"
SHAPES = ("m=512,n=512,k=512", "m=64,n=4096,k=1024")


def answers(query: Query | None = None) -> list[Answer]:
    """Return recommendations for the library's Triton matmul, whose profiles ship with kernrec."""
    recommender = Recommender([])
    return [
        recommender.answer(Request("a100", None, "matmul_triton", shape, query=query or Query())) for shape in SHAPES
    ]


def test_inductor_table_has_one_entry_per_shape():
    recommended = answers(Query("latency"))
    (text,) = emit(recommended, "inductor").values()
    table = json.loads(text)
    assert len(table) == len(SHAPES)
    for answer, (config,) in zip(recommended, table.values(), strict=True):
        assert {name.lower(): config[name] for name in TUNABLES}.items() <= dict(answer.best.config).items()
        assert config["template_id"] == TEMPLATE


def test_command_prints_the_table():
    shapes = [part for shape in SHAPES for part in ("--shape", shape)]
    done = run_here("recommend", "--kernel", "matmul_triton", "--gpu", "a100", *shapes, "--emit", "inductor")
    assert len(json.loads(done.stdout)) == len(SHAPES)


def test_tables_for_inductor_and_vllm_refuse_matvec(refuses):
    answer = Recommender([]).answer(Request("a100", "matvec", None, "m=512,k=512"))
    refuses(lambda: emit([answer], "inductor"))
    refuses(lambda: emit([answer], "vllm:e=8,n=512,m=1,device=NVIDIA A100-SXM4-80GB"))


def test_expert_file_has_the_best_config_per_token_count(refuses):
    recommended = []
    for name, shape in (("a", "m=64,n=512,k=512"), ("b", "m=64,n=512,k=64"), ("c", "m=512,n=512,k=64")):
        answer = Recommender([]).answer(Request("a100", None, "matmul_triton", shape, query=Query("latency")))
        kernel = answer.best.kernel  # vLLM has no field for `unaligned`, dropped below
        own = replace(kernel, name=name, tunables=tuple(t for t in kernel.tunables if t.name != "unaligned"))
        recommended.append(replace(answer, recommendations=(replace(answer.best, kernel=own),)))
    (path,) = emit(recommended, "vllm:e=8,n=512,m=2 * m,device=NVIDIA A100-SXM4-80GB").items()
    configs, _ = read_moe_configs(path[1].decode(), path[0])
    shorter, other = recommended[1].best.config, recommended[2].best.config
    assert {tokens: config["BLOCK_SIZE_K"] for tokens, config in configs.items()} == {
        128: shorter["block_k"],
        1024: other["block_k"],
    }
    refuses(lambda: emit(recommended, "vllm:e=8,n=512,m=16,device=NVIDIA A100-SXM4-80GB"))
    refuses(lambda: emit(recommended, "sglang:e=8,n=512,m=tokens,device=NVIDIA A100-SXM4-80GB"))
    refuses(lambda: emit(recommended, "sglang:e=8,n=512,m=m - 64,device=NVIDIA A100-SXM4-80GB"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("triton", reason="needs the extra `triton`")
    folder: Path = tmp_path_factory.mktemp("emitted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNREC_DB", str(folder / "own.duckdb"))
        patch.setenv("KERNREC_CACHE", str(folder / "cache"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        (folder / "call.toml").write_text(beside(__file__, "call.toml"))
        run_here("analyze", f"{KERNELS}:product", "--spec", f"{folder}/call.toml", "--gpu", "a100")
        yield folder


def emitted(*arguments: str) -> Any:
    return run_here("recommend", "--kernel", "product", "--gpu", "a100", "--objective", "latency", *arguments)


@pytest.mark.every(2)
@pytest.mark.slow
def test_second_emit_adds_its_token_count_to_the_expert_file(folder):
    (folder / "moe").mkdir()
    for tokens in (1, 16):
        detail = f"e=8,n=512,m={tokens},device=NVIDIA A100-SXM4-80GB"
        done = emitted("--emit", f"vllm:{detail}", "--output", str(folder / "moe"))
        assert done.returncode == 0, done.stderr
    (path,) = (folder / "moe").iterdir()
    assert path.name == "E=8,N=512,device_name=NVIDIA_A100-SXM4-80GB.json"
    configs, _ = read_moe_configs(path.read_text(), "file")
    assert list(configs) == [1, 16]
    assert configs[1]["BLOCK_SIZE_K"] in (32, 64)
    assert os.listdir(folder / "moe") == [path.name]
    run_here("analyze", f"{KERNELS}:product", "--spec", f"{folder}/call.toml", "--gpu", "a100", "--shape", "k=64")
    every = emitted("--emit", "vllm:e=8,n=512,m=k,device=NVIDIA A100-SXM4-80GB")
    assert list(read_moe_configs(every.stdout, "output")[0]) == [64, 128]
    (folder / "moe" / "other.json").write_text("{}")
    done = emitted("--emit", f"sglang:{detail}", "--output", str(folder / "moe" / "other.json"))
    assert done.returncode == 2
    assert "other.json is not a file of expert configs" in done.stderr
