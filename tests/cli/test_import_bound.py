"""Test that `recommend`, `train` and `evaluate` use a recording imported for a user's kernel."""

import json
from pathlib import Path

import pytest

from kernrec.cli.app import run
from tests.helpers.paths import beside

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_here")]

SOURCE = beside(__file__, "smooth.cu", "refusals")
SPEC = beside(__file__, "smooth.toml", "refusals")
CARDS = {"rtx4090": 160e-6, "rtx4080": 220e-6}
"""Latency of the fastest config in seconds; at data sheet bandwidth, its 134 MB take 133 and 187 us."""


def measured_s(card: str, bx: int, taps: int) -> float:
    """Return the latency on a made-up GPU on which blocks of 128 threads are fastest and the longest filter is slow."""
    return CARDS[card] * (1.0 + 0.1 * abs(bx.bit_length() - 8)) * (2.0 if taps == 8 else 1.0)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """Return a folder with the kernel, a results table for each GPU, and a database with the kernel's analysis."""
    folder = tmp_path_factory.mktemp("bound")
    (folder / "smooth.cu").write_text(SOURCE)
    (folder / "smooth.toml").write_text(SPEC)
    for card in CARDS:
        rows = [
            f"{bx},{taps},{measured_s(card, bx, taps) * 1e6}" for bx in (32, 64, 128, 256, 512, 1024) for taps in (1, 8)
        ]
        (folder / f"{card}.csv").write_text("\n".join(("BX,TAPS,duration", *rows)))
    spec = ("--spec", str(folder / "smooth.toml"))
    assert (
        run(["analyze", str(folder / "smooth.cu"), *spec, "--gpu", "rtx4090", "--db", str(folder / "own.duckdb")]) == 0
    )
    for card in CARDS:
        bound = (
            "--kernel", str(folder / "smooth.cu"), *spec, "--gpu", card, "--map", "latency_s=duration*1e-6", "--map",
            "by=a test",
        )  # fmt: skip
        assert run(["db", "import", str(folder / f"{card}.csv"), *bound, "--db", str(folder / "own.duckdb")]) == 0
    return folder


def recommended(kernel: Path, capsys: pytest.CaptureFixture[str], gpu: str, *more: str) -> list[dict]:
    """Return the recommendations of `recommend --kernel`."""
    capsys.readouterr()
    wanted = ("--objective", "latency", "--top", "20", "--json", "--power-limit", {"rtx4090": "450W"}.get(gpu, "320W"))
    assert (
        run(["recommend", "--kernel", "smooth", "--gpu", gpu, "--db", str(kernel / "own.duckdb"), *wanted, *more]) == 0
    )
    return json.loads(capsys.readouterr().out)["recommendations"]


def test_bound_rows_get_the_source_measured(kernel, capsys):
    recommendations = recommended(kernel, capsys, "rtx4090")
    assert {recommendation["source"] for recommendation in recommendations} == {"measured"}
    assert recommendations[0]["config"] == {"bx": 128, "taps": 1}
    assert recommendations[0]["latency_s"] == pytest.approx(160e-6)


def test_model_trained_on_bound_rows_predicts_an_unmeasured_gpu(kernel, capsys):
    pytest.importorskip("xgboost")
    assert run(["train", "--kernel", "smooth", "--db", str(kernel / "own.duckdb")]) == 0
    recommendations = recommended(kernel, capsys, "rtx4080-super")
    assert {recommendation["source"] for recommendation in recommendations} == {"transferred"}
    assert {recommendation["config"]["taps"] for recommendation in recommendations[:6]} == {1}
    assert run(["evaluate", "--kernel", "smooth", "--split", "gpu", "--db", str(kernel / "own.duckdb"), "--json"]) == 0
    capsys.readouterr()


def test_import_refuses_a_tunable_that_the_source_lacks(kernel, tmp_path, capsys):
    (tmp_path / "smooth.cu").write_text(SOURCE.replace("TAPS", "3"))
    (tmp_path / "smooth.toml").write_text(SPEC)
    words = (
        "--kernel", str(tmp_path / "smooth.cu"), "--spec", str(tmp_path / "smooth.toml"), "--map",
        "latency_s=duration*1e-6",
    )  # fmt: skip
    database = ("--gpu", "rtx4090", "--db", str(tmp_path / "new.duckdb"))
    assert run(["db", "import", str(kernel / "rtx4090.csv"), *words, *database]) == 2
    assert "smooth: tunable taps changes nothing" in capsys.readouterr().err
