"""The cache of emulated runs of the tests: what did not change is not executed again, and whatever did is."""

from pathlib import Path

import numpy as np
import pytest

from kernrec.ptx import EmulationError
from tests.helpers import run_cache
from tests.helpers.counted import CachedCounts
from tests.helpers.run_cache import cached_run, run_key

A = {"a": np.arange(6, dtype=np.float32)}


class Counted:
    """A run that counts how often it is executed."""

    def __init__(self, error: str = "") -> None:
        self.times = 0
        self._error = error

    def __call__(self) -> dict[str, np.ndarray]:
        self.times += 1
        if self._error:
            raise EmulationError(self._error)
        return {"c": np.array([1.5, np.nan], np.float32), "d": np.zeros((2, 3), np.uint16)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_TEST_CACHE", str(tmp_path))
    return tmp_path


def test_outputs_are_cached_bit_for_bit():
    run = Counted()
    first, second = (cached_run("key", run) for _ in range(2))
    assert run.times == 1
    assert {name: (v.dtype, v.shape, v.tobytes()) for name, v in first.items()} == {
        name: (v.dtype, v.shape, v.tobytes()) for name, v in second.items()
    }


def test_error_is_cached_with_its_message():
    run = Counted("k: a race")
    for _ in range(2):
        with pytest.raises(EmulationError, match=r"^k: a race$"):
            cached_run("key", run)
    assert run.times == 1


def test_changed_emulator_repeats_a_cached_run(monkeypatch):
    run = Counted()
    for emulator in ("1" * 64, "2" * 64, "1" * 64):
        monkeypatch.setattr(run_cache, "emulator_hash", lambda emulator=emulator: emulator)
        cached_run("key", run)
    assert run.times == 2


def test_another_engine_changes_the_emulator_key(monkeypatch):
    hashes = set()
    for engine in ("_engine.1.so", "_engine.2.so"):
        monkeypatch.setattr("kernrec.util.engine_file.find", lambda engine=engine: Path(engine))
        hashes.add(run_cache.emulator_hash.__wrapped__())
    assert len(hashes) == 2


def test_outcomes_of_old_emulators_are_deleted(folder, monkeypatch):
    for emulator in map(str, range(6)):
        monkeypatch.setattr(run_cache, "emulator_hash", lambda emulator=emulator: emulator)
        cached_run("key", Counted())
    assert len(list(folder.iterdir())) == 4


def test_launch_counts_are_cached_for_the_next_run():
    launch = ("hash of the PTX", "k", (4, 1, 1), (32, 1, 1))
    CachedCounts()[launch] = {"issue": 3, "lanes": 96}
    later = CachedCounts()
    assert (launch[0], "other", *launch[2:]) not in later
    assert launch in later
    assert later[launch] == {"issue": 3, "lanes": 96}


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a file of arrays", None])
def test_unreadable_file_is_treated_as_missing(folder, damage):
    run = Counted()
    cached_run("key", run)
    [file] = folder.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:-30] if damage is None else damage)
    cached_run("key", run)
    assert run.times == 2
    cached_run("key", run)
    assert run.times == 2


def test_disabled_cache_stores_nothing(folder, monkeypatch):
    monkeypatch.setenv("KERNREC_TEST_CACHE", "off")
    run = Counted()
    for _ in range(2):
        cached_run("key", run)
    assert run.times == 2
    assert not list(folder.iterdir())


def test_key_depends_on_ptx_launches_and_every_tensor_byte():
    keys = {
        run_key(tensors, *parts)
        for tensors, *parts in [
            (A, "ptx", 1), (A, "other ptx", 1), (A, "ptx", 2), ({"b": A["a"]}, "ptx", 1),
            ({"a": A["a"].reshape(2, 3)}, "ptx", 1), ({"a": A["a"].view(np.uint32)}, "ptx", 1),
            ({"a": A["a"] + np.float32(1e-6)}, "ptx", 1),
        ]
    }  # fmt: skip
    assert len(keys) == 7
    assert run_key({"a": A["a"].copy()}, "ptx", 1) in keys
