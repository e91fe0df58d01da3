"""Test that the tests' cache of emulated runs repeats a run only if something changed."""

import numpy as np
import pytest

from kernrec.ptx import EmulationError
from tests.helpers import run_cache
from tests.helpers.run_cache import cached_run, run_key

A = {"a": np.arange(6, dtype=np.float32)}


class Counted:
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


def test_changed_emulator_repeats_a_cached_run(monkeypatch):
    run = Counted()
    for emulator in ("1" * 64, "2" * 64, "1" * 64):
        monkeypatch.setattr(run_cache, "emulator_hash", lambda emulator=emulator: emulator)
        cached_run("key", run)
    assert run.times == 2


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
