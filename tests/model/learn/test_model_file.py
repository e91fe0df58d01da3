"""Test that model files read back as saved, and that damaged, foreign or old files give a one-line error."""

import json
import multiprocessing
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernrec.errors import UsageError
from kernrec.model.learn.features import VERSION
from kernrec.model.learn.model import Model
from kernrec.model.learn.model_file import _FIELDS, load, save
from kernrec.training.boosting import TrainingSettings
from kernrec.training.dataset import Dataset
from kernrec.training.train_model import train
from tests.helpers.simulated_groups import simulated_groups, simulated_inputs

pytest.importorskip("xgboost")


TRAINING = {
    "measurements": 3, "mark": "0123", "rows": 120, "problems": ["problem 0"], "data_sha256": "0" * 64,
    "prior": {"probe": [1.0], "calibrations": {"sm_89": "abc"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return train(Dataset(tuple(simulated_groups(10, rows=12))), TrainingSettings(rounds=10, depth=2, threads=1))


@pytest.fixture
def card(model, tmp_path):
    return save(model, tmp_path / "models", "matmul", TRAINING)


def altered(path: Path, **change: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return path


def test_saved_model_reads_back(model, card):
    loaded, text = load(card)
    inputs = simulated_inputs(20, 5)
    ours, theirs = model.log_ratio(inputs), loaded.log_ratio(inputs)
    assert (ours[0]["latency"] == theirs[0]["latency"]).all()
    assert np.allclose(ours[1], theirs[1])
    assert loaded.intervals == model.intervals
    assert text["training"] == TRAINING


def test_second_save_leaves_no_old_trees(model, card):
    other = train(Dataset(tuple(simulated_groups(4, rows=12, seed=3))), TrainingSettings(rounds=5, depth=2, threads=1))
    save(other, card.parent, "matmul", TRAINING)
    assert len(list(card.parent.glob("*.trees"))) == 2
    load(card)


def test_save_keeps_other_models_and_deletes_leftovers_of_killed_trainings(model, card):
    version = save(model, card.parent, "matmul.v2", TRAINING)
    (left := card.parent / f".matmul.latency.{'0' * 12}.ubj.{'0' * 12}").touch()
    save(model, card.parent, "matmul", TRAINING)
    assert not left.exists()
    load(card)
    load(version)


def _save_often(model: Model, folder: Path) -> None:
    for _ in range(20):
        save(model, folder, "matmul", TRAINING)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_concurrent_trainings_leave_one_valid_model(model, card):
    other = train(Dataset(tuple(simulated_groups(4, rows=12, seed=3))), TrainingSettings(rounds=5, depth=2, threads=1))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_save_often, args=(each, card.parent)) for each in (model, other)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    load(card)


@pytest.mark.parametrize(("change", "message"), [
    ({"format": 1}, "format 1; this kernrec reads format 2"),
    ({"features": {"version": 0, "columns": []}}, "version 0 of the features"),
    ({"features": {"version": VERSION, "columns": ["moon phase"]}}, "does not have: moon phase"),
    ({"features": {"version": VERSION, "columns": ["warps"]}}, "the card names 1"),
    ({"heads": {"mass": {}}}, "head 'mass'"), ({"heads": {}}, "no latency head"),
    ({"heads": {"latency": {"file": "../x.ubj", "sha256": ""}}}, "outside of its folder"),
    ({"heads": {"latency": {"file": "gone.ubj", "sha256": ""}}}, "cannot be read: there is no such file"),
    ({"heads": 7}, "not a model card"), ({"heads": {"latency": 7}}, "not a model card"),
    ({"heads": {"latency": {"sha256": ""}}}, "'file' is missing"),
    ({"features": [1]}, "features is .1., expected an object"), ({"gpus": 3}, "gpus is 3, expected a list"),
    ({"training": None}, "training is None, expected an object"),
    ({"training": TRAINING | {"prior": "old"}}, "training.prior is 'old', expected an object"),
    ({"training": TRAINING | {"problems": "3"}}, "training.problems is '3', expected a list or a number"),
    ({"intervals": {"latency": {"*": {"width": 1.0}}}}, "'groups' is missing"),
    ({"intervals": {"latency": {"*": {"width": "a", "groups": 1, "kind": "", "level": 0.9}}}}, "not a model card"),
    ({"intervals": {"latency": {"*": {"width": -1, "groups": 1, "kind": "", "level": 0.9}}}}, "an interval is"),
    ({"kernels": {"a": 3}}, "gpus, kernels and ops must hold only texts"),
    ({"extent": {"low": [], "high": [], "spread": []}}, "one number for each feature"),
])  # fmt: skip
def test_inconsistent_model_card_is_refused_in_one_line(card, change, message):
    with pytest.raises(UsageError, match=message) as caught:
        load(altered(card, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", _FIELDS)
def test_error_for_an_incomplete_model_card_names_the_missing_field(card, field):
    text = json.loads(card.read_text())
    part, (*path, last) = text, field.split(".")
    for step in path:
        part = part[step]
    del part[last]
    card.write_text(json.dumps(text))
    with pytest.raises(UsageError, match=rf"not a model card .*, or is incomplete: {field} is missing") as caught:
        load(card)
    assert "\n" not in str(caught.value)


def test_damaged_or_swapped_tree_files_are_refused(card):
    trees, other = (next(card.parent.glob(f"*.{head}.*.trees")) for head in ("latency", "power"))
    data = trees.read_bytes()
    for damage in (data[:-10], data[:50] + b"x" + data[51:], b"", other.read_bytes()):
        trees.write_bytes(damage)
        with pytest.raises(UsageError, match="its SHA-256 is not the one in"):
            load(card)


def test_lazily_loaded_trees_are_checked_on_first_use(card):
    trees = next(card.parent.glob("*.latency.*.trees"))
    content = trees.read_bytes()
    trees.write_bytes(b"")
    model, _ = load(card, trees=False)
    assert "latency" in model.forests
    with pytest.raises(UsageError, match="its SHA-256 is not the one in"):
        model.forests["latency"]
    trees.write_bytes(content)
    assert model.forests["latency"].features == len(model.columns)


def test_model_card_of_kernrec_0_1_0_loads(model, card):
    heads = json.loads(card.read_text())["heads"]
    old = {
        head: {"file": entry["file"].replace(".trees", ".ubj"), "sha256": "0" * 64, "arrays": entry["sha256"]}
        for head, entry in heads.items()
    }
    inputs = simulated_inputs(20, 5)
    predicted = load(altered(card, heads=old))[0].log_ratio(inputs)[0]
    assert all((predicted[head] == values).all() for head, values in model.log_ratio(inputs)[0].items())


def test_impossible_trees_with_a_valid_hash_are_refused(model, card):
    trees = next(card.parent.glob("*.latency.*.trees"))
    content = replace(model.forests["latency"], base=float("nan")).packed()
    trees.write_bytes(content)
    heads = json.loads(card.read_text())["heads"]
    heads["latency"]["sha256"] = sha256(content).hexdigest()
    with pytest.raises(UsageError, match="holds no trees that can be used: a base or leaf") as caught:
        load(altered(card, heads=heads))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_model_card_with_a_non_finite_number_is_refused(card, number):
    card.write_text(card.read_text().replace('"rows": 120', f'"rows": {number}'))
    with pytest.raises(UsageError, match="a number that is not finite"):
        load(card)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "[" * 100_000])
def test_file_that_is_no_model_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        load(path)


def test_missing_model_is_a_usage_error(tmp_path, refuses):
    refuses(lambda: load(tmp_path / "matmul.json"))


def test_model_name_cannot_leave_the_folder(model, tmp_path, refuses):
    refuses(lambda: save(model, tmp_path, "../x", {}))


def test_unwritable_folder_is_reported(model, tmp_path, refuses):
    (tmp_path / "file").write_text("")
    refuses(lambda: save(model, tmp_path / "file" / "models", "matmul", {}))
