"""Test that `search`, `refine` and `collect` run on the recording that ships, without a GPU or any file name."""

import numpy as np
import pytest

from kernrec.cli.app import run
from kernrec.measure.device.replay import KERNEL, load_recordings, shipped_recording
from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """Share a cache among the tests here, so that the recording is read only once."""
    return tmp_path_factory.mktemp("cache") / "kernrec"


@pytest.fixture(autouse=True)
def own_cache(shared_cache, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(shared_cache))
    return shared_cache


@pytest.mark.every(4)
def test_every_recorded_config_ships_with_its_licence():
    (recording,) = load_recordings(shipped_recording(), None)
    assert (recording.gpu, len(recording.outcomes)) == ("rtx-a4000", 4362)
    assert recording.problem.key.startswith("conv2d[n=1,c=1,h=4110,w=4110,k=1,r=15,s=15")
    assert {kernel for kernel, _ in recording.outcomes} == {KERNEL}
    medians_s = [np.median(recorded.samples_s) for recorded in recording.outcomes.values() if recorded.samples_s]
    assert min(medians_s) == pytest.approx(0.998e-3, rel=0.005)
    assert "AutoTuningAssociation/benchmark_hub" in (ROOT / "NOTICE").read_text()


def test_replay_of_a_named_recording_needs_a_database(tmp_path, capsys):
    assert run(["collect", "--replay", str(tmp_path / "own.duckdb")]) == 2
    assert "needs --db" in capsys.readouterr().err
