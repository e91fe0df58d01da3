"""The tool that leaves a card out says what it lacks, and cuts a space as it says."""

import sys
from pathlib import Path

import learn_from_recordings
import numpy as np
import pytest
import recorded_sets


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with a stand-in for every file of the sets."""
    for recorded in recorded_sets.SETS:
        spec = (recorded_sets.SPECS / f"{recorded.name}.toml").read_text()
        entry = next(line.split('"')[1] for line in spec.splitlines() if line.startswith("entry"))
        for end in recorded.source:
            path = tmp_path / "sources" / end
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"__global__ void {entry}() {{}}")
    return tmp_path / "sources"


def test_without_sources_it_says_so_and_succeeds(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["learn_from_recordings.py"])
    assert learn_from_recordings.main() == 0
    assert "--sources names a folder" in capsys.readouterr().out


@pytest.mark.parametrize("name", learn_from_recordings.PARTS)
def test_the_part_of_a_space_keeps_the_values_that_are_named(name: str, sources: Path, tmp_path: Path) -> None:
    recorded = next(each for each in recorded_sets.SETS if each.name == name)
    kernel = learn_from_recordings.reduced_kernel(recorded, sources, tmp_path)
    values = {tunable.name: tunable.values for tunable in kernel.tunables}
    assert values == {key: tuple(kept) for key, kept in learn_from_recordings.PARTS[name].items()}
    outside = {tunable.name: tunable.values[0] for tunable in kernel.tunables}
    rows = recorded_sets.Rows([outside, outside | {kernel.tunables[0].name: 7}], np.array([1.0, 2.0]))
    assert learn_from_recordings.part_of(rows, kernel).latency_s.tolist() == [1.0]


def test_a_card_is_taken_once_and_only_at_its_own_clock() -> None:
    convolution = next(each for each in recorded_sets.SETS if each.name == "convolution")
    cards = [recording.card for recording in learn_from_recordings.one_per_card(convolution)]
    assert len(cards) == len(set(cards)) == 4  # the A100 ran at its base clock
    assert all(recording.clock_hz is None for recording in learn_from_recordings.one_per_card(convolution))
