"""Test reading CLBlast's tuner files and KTT's JSON, and errors for known formats that kernrec cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest

from kernrec.interop.import_results import import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import StatedProblem
from kernrec.store import Database
from kernrec.store.measurement import Outcome
from tests.helpers.paths import beside

CLBLAST: dict[str, Any] = json.loads(beside(__file__, "clblast.json"))
KTT: dict[str, Any] = json.loads(beside(__file__, "ktt.json"))


def written(folder: Path, document: object) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(document))
    return path


def test_clblast_tuner_file_keeps_problem_and_measurements(tmp_path):
    file = read_results(written(tmp_path, CLBLAST))
    assert (file.tool, file.kernel, file.device, file.not_run) == ("CLBlast", "xgemm_1", "NVIDIA GeForce RTX 3060", 1)
    assert [(dict(row.config), row.latency_s) for row in file.results] == [
        ({"MWG": 64, "NWG": 64}, pytest.approx(620e-6)),
        ({"MWG": 32, "NWG": 64}, pytest.approx(810e-6)),
    ]
    assert file.results[0].problem == StatedProblem("matmul", (("m", 1024), ("n", 512), ("k", 256)), "f32")
    with Database.open(tmp_path / "own.duckdb", read_only=False, create=True) as database:
        summary = import_results(database, tmp_path / "results.json", StatedProblem("matmul"))
        assert (summary.added > 0, summary.gpu.name) == (True, "rtx3060")


def test_ktt_json_is_read_with_its_failures(tmp_path):
    file = read_results(written(tmp_path, KTT))
    good, wrong = file.results
    assert (file.tool, file.device, good.kernel) == ("KTT", "NVIDIA GeForce RTX 3060", "nbody")
    assert (dict(good.config), good.registers) == ({"GROUP": 64, "F": "x"}, 40)
    assert good.latency_s == pytest.approx(310.5e-6)
    assert (wrong.outcome, wrong.latency_s, wrong.error) == (Outcome.INCORRECT, None, "ValidationFailed")


def test_damaged_json_of_ktt_gets_one_line(tmp_path, refuses):
    refuses(lambda change: read_results(written(tmp_path, KTT | change)), [
        {"Metadata": {"TimeUnit": "Minutes"}}, {"Results": {}},
        {"Results": [{"Configuration": [{"Name": "A", "Value": 1}], "Status": "Fine"}]},
        {"Results": [{"Configuration": "A"}]},
    ])  # fmt: skip


def test_unsupported_formats_are_named(tmp_path, refuses):
    def refused(text: str) -> None:
        path = tmp_path / "tuned.json"
        path.write_text(text)
        read_results(path)

    refuses(refused, [
        '{"input": ["cuda", "dense_small_batch.cuda", []], "config": {}, "result": [[0.1], 0, 1, 1]}\n',
        '{"i": ["cuda -model=t4", "conv2d_nchw.cuda"], "t": "", "v": 0.2}\n',
        '{"_metadata": {"flashinfer_version": "0.6"}, "(\'fp4_gemm\')": ["Runner", 3]}',
    ])  # fmt: skip
