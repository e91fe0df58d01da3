"""Test that backend models learn deviations from the bound, and never use held-out rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library_training import trees as vendor_trees
from library_training.table import FOLDS, Recording, Table
from library_training.train import train_set

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.baselines import model_file
from kernrec.model.baselines.bound import GRAPH, features
from kernrec.model.baselines.compact_trees import Trees
from kernrec.model.baselines.recorded_set import OTHER, RecordedSet
from kernrec.model.baselines.timed import Kind
from kernrec.op import find_op

CARDS = {"a100-sxm4-80gb": 1.0, "l40s": 1.2, "h200-sxm": 0.9}
SLOWDOWN = {"vLLM": 1.0, "SGLang": 1.3}
MADE_UP = RecordedSet(
    "made up", "matmul", "product", {"vLLM": dict.fromkeys(CARDS, "0.22"), "SGLang": {"l40s": "0.5", "h200-sxm": None}},
    ("bf16",), ("nt",), ("f16", "tn"), 0.1, GRAPH, ("n",), {"SGLang": {"k": 32}}, (), {"source": "a formula"},
)  # fmt: skip


def recorded(rows: int = 200) -> Recording:
    """Return matmul times: the lower bound times a factor that depends on GPU, backend and k."""
    draw = np.random.default_rng(5)
    sizes = {
        "batch": np.ones(rows, dtype=np.int64),
        "m": draw.integers(1, 4096, rows),
        "n": draw.choice([256, 1024, 4096, 8192], rows),
        "k": 64 * draw.integers(1, 99, rows),
    }
    parts, gpu, backends = [], [], []
    for backend, gpus in MADE_UP.backends.items():
        for card in gpus:
            bound, _ = features("matmul", find_gpu(card), "bf16", "nt", sizes, GRAPH)
            factor = CARDS[card] * SLOWDOWN[backend] * np.where(sizes["k"] > 3000, 1.5, 1.0)
            parts.append(bound.total_s * factor * draw.lognormal(0, 0.01, rows))
            gpu += [card] * rows
            backends += [backend] * rows
    dims = {name: np.tile(size, len(parts)) for name, size in sizes.items()}
    count = rows * len(parts)
    power_w = np.where(np.array(gpu) == "h200-sxm", 300.0 + 100.0 * (dims["m"] > 1000), np.nan)
    kinds = np.full(count, "bf16"), np.full(count, "nt")
    return Recording(MADE_UP, np.array(gpu), np.array(backends), *kinds, dims, np.concatenate(parts), power_w)


@pytest.fixture(scope="module")
def table():
    return Table.of(recorded())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor_trees, "_ROUNDS", (25, 5))
        patch.setattr(vendor_trees, "_FEWEST_POWERS", 100)
        entry, trees = train_set(recorded())
    folder: Path = tmp_path_factory.mktemp("models")
    return model_file.load(model_file.save({"op": "matmul", "sets": [entry]}, trees, folder))


def test_training_problem_has_the_same_index_on_all_gpus(table):
    by_card = table.problem.reshape(-1, 200)
    assert (by_card == by_card[0]).all()


def test_held_out_rows_do_not_reach_the_trees(table, monkeypatch):
    seen = []
    boost = vendor_trees._boosted
    monkeypatch.setattr(vendor_trees, "_ROUNDS", (3, 0))
    monkeypatch.setattr(vendor_trees, "_boosted", lambda *arguments: (seen.append(arguments[2]), boost(*arguments))[1])
    errors = vendor_trees.left_out_errors(table, "latency", "l40s")
    rows = table.on("l40s", "latency")
    assert np.isfinite(errors[rows]).all()
    assert np.isnan(np.delete(errors, rows)).all()
    assert len(seen) == FOLDS
    held_out = [set(table.problem[rows]) - set(table.problem[others]) for others in seen]
    assert sorted(problem for part in held_out for problem in part) == sorted(set(table.problem[rows]))
    seen.clear()
    vendor_trees.between_errors(table, "latency", "l40s")
    n = table.recording.dims["n"]
    assert all(len(set(n[others])) < len(set(n)) for others in seen)


@pytest.mark.every(3)
@pytest.mark.parametrize("card", CARDS)
def test_recorded_gpu_has_its_own_trees(model, card):
    problem = find_op("matmul").problem("bf16", "nt", m=512, n=1024, k=4096)
    predicted, *others = model.on(find_gpu(card)).predict(problem)
    dims = {name: np.array([problem.sizes[name]]) for name in ("batch", "m", "n", "k")}
    bound, _ = features("matmul", find_gpu(card), "bf16", "nt", dims, GRAPH)
    expected_s = bound.total_s[0] * CARDS[card] * 1.5
    assert (predicted.backend, predicted.version) == ("vLLM", "0.22")
    assert predicted.latency_s.value == pytest.approx(expected_s, rel=0.1)
    assert [other.backend for other in others] == ["SGLang"] * (card != "a100-sxm4-80gb")
    assert all(other.latency_s.value == pytest.approx(1.3 * expected_s, rel=0.1) for other in others)
    assert predicted.busy.keys() == {"math", "dram", "l2", "launch"}
    assert max(predicted.busy.values()) < predicted.latency_s.value
    assert not predicted.latency_s.transferred
    assert predicted.latency_s.low < predicted.latency_s.value < predicted.latency_s.high
    assert predicted.power_w is not None
    assert predicted.power_w.transferred == (card != "h200-sxm")
    assert predicted.power_w.high <= find_gpu(card).tdp_w


def test_unrecorded_gpu_has_a_wider_interval(model):
    problem = find_op("matmul").problem("bf16", "nt", m=512, n=1024, k=4096)
    own, other = (model.on(find_gpu(gpu)).predict(problem)[0] for gpu in ("l40s", "rtx4090"))
    assert {line.backend for line in model.on(find_gpu("rtx4090")).predict(problem)} == set(SLOWDOWN)
    assert other.latency_s.transferred
    assert other.latency_s.high / other.latency_s.value > own.latency_s.high / own.latency_s.value
    assert other.gpus == tuple(sorted(CARDS))


def test_overhead_of_a_backend_is_added_on_unrecorded_gpus(tmp_path):
    recording = recorded()
    late = np.where(recording.backend == "SGLang", 8e-6, 0.0)
    delayed = replace(recording, latency_s=recording.latency_s + late)
    overheads_s = vendor_trees.overheads_s(Table.of(delayed), ["l40s", "h200-sxm"])
    assert overheads_s.keys() == {"SGLang"}
    assert overheads_s["SGLang"] == pytest.approx(8e-6, rel=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor_trees, "_ROUNDS", (5, 1))
        entry, trees = train_set(delayed)
    loaded = model_file.load(model_file.save({"op": "matmul", "sets": [entry]}, trees, tmp_path))
    problem = find_op("matmul").problem("bf16", "nt", m=16, n=256, k=64)
    first, second = loaded.on(find_gpu("rtx4090")).predict(problem)
    assert (first.backend, second.backend) == ("vLLM", "SGLang")
    assert second.latency_s.value - first.latency_s.value > 5e-6


def test_unrecorded_backend_has_no_prediction(model):
    matmul, gpu = find_op("matmul"), find_gpu("l40s")
    for dtype, layout, more in (("f64", "nt", {}), ("bf16", "nn", {}), ("bf16", "nt", {"batch": 2})):
        assert model.on(gpu).predict(matmul.problem(dtype, layout, m=64, n=64, k=64, **more)) == ()


def test_rows_faster_than_the_data_sheet_are_dropped_and_counted():
    recording = recorded(60)
    latency_s = recording.latency_s.copy()
    latency_s[:5] /= 100
    table = Table.of(replace(recording, latency_s=latency_s))
    assert table.impossible == 5
    assert not np.isfinite(table.target["latency"][:5]).any()
    assert np.isfinite(table.target["latency"][5:]).all()


def test_one_part_of_a_saved_baseline_model_can_be_replaced(tmp_path):
    entry, trees = _small()
    path = model_file.save({"op": "matmul", "sets": [entry]}, trees, tmp_path)
    card, stored = model_file.stored(path)
    again = model_file.save({"op": "matmul", "sets": card["sets"]}, stored, tmp_path / "again")
    assert again.with_suffix(".trees").read_bytes() == path.with_suffix(".trees").read_bytes()
    assert model_file.load(again).sets[0].recorded == model_file.load(path).sets[0].recorded


def test_interval_has_the_stated_coverage():
    draw = np.random.default_rng(2)
    errors, problems = draw.normal(0, 0.1, 4000), np.arange(4000)
    assert 0.88 <= vendor_trees.coverage(errors, problems) <= 0.92


def test_trees_for_any_gpu_use_no_absolute_features(table, model):
    names = {table.columns["latency"][i] for i in table.ratios("latency")}
    assert names
    assert not any(name.startswith(("log.", "layout.", "rest.")) for name in names)
    assert set(model.sets[0].heads["latency", OTHER].columns) == names


def test_damaged_or_foreign_model_file_is_refused(tmp_path):
    entry, trees = _small()
    path = model_file.save({"op": "matmul", "sets": [entry]}, trees, tmp_path)
    content = path.with_suffix(".trees").read_bytes()
    cases = {
        "is damaged or was replaced": lambda: path.with_suffix(".trees").write_bytes(content[:-1] + b"!"),
        "cannot be read": lambda: path.with_suffix(".trees").unlink(),
        "of format 9": lambda: path.write_text(path.read_text().replace('"format": 3', '"format": 9')),
        "outside of its folder": lambda: path.write_text(
            path.read_text().replace('"matmul.trees"', '"../matmul.trees"')
        ),
        "is not a backend model": lambda: path.write_text("{}"),
    }
    for message, damage in cases.items():
        model_file.save({"op": "matmul", "sets": [entry]}, trees, tmp_path)
        damage()
        with pytest.raises(UsageError, match=message):
            model_file.load(path)


def _small() -> tuple[dict[str, Any], dict[str, Trees]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor_trees, "_ROUNDS", (2, 1))
        return train_set(recorded(60))


def test_gpu_without_power_rows_uses_the_trees_of_its_architecture(model):
    (entry,) = model.sets
    assert {("power", "sm_90"), ("power", OTHER)} <= set(entry.heads)
    assert ("latency", "sm_90") not in entry.heads
    problem = find_op("matmul").problem("bf16", "nt", m=2048, n=1024, k=4096)
    predicted = model.on(find_gpu("h100-sxm")).predict(problem)[0]
    assert predicted.power_w is not None
    assert predicted.power_w.transferred
    dims = {name: np.array([problem.sizes[name]]) for name in ("batch", "m", "n", "k")}
    bound, _ = features("matmul", find_gpu("h100-sxm"), "bf16", "nt", dims, GRAPH)
    kind = Kind(entry, find_gpu("h100-sxm"), "bf16", "nt")
    assert kind.head("power") is entry.heads["power", "sm_90"]
    assert kind.reader("power", ("vLLM",), bound).transferred
