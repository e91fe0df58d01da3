"""At which clock the recorded convolution ran on the A100: what made its best configs the best.

    python tools/recorded_clock.py [--data ../shared/data]

The record (`convolution-a100.t4.json.gz`, shared data) keeps the order and the 32 run times of each config. Two things
in it are the card's doing, not the config's:
- Configs that run for 150 ms and more step to another time in the middle, once, and stay there: by 1.77 in the median
  and 1.89 at most, from the A100 PCIe's base clock of 765 MHz to its boost of 1,410 MHz (data sheet; a ratio of 1.84).
  Shorter ones never leave the first clock.
- A config that runs within two seconds of a tenth of a second of work starts at the higher clock. Of pairs of configs
  that differ in the read-only flag alone, which leaves the filter's arithmetic the same to the instruction, one takes
  down to 0.56 of the other's time where one of them did, and never less than 0.82 where neither did.
So the order of the record decides which configs came out 1.6 times faster than their like. No model of a kernel can
know that, and none should; scores over the configs at one clock tell what a model is worth.
"""

import argparse
import datetime
import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from recorded_convolution import TUNABLES

Array = np.ndarray
FILE = "convolution-a100.t4.json.gz"

BASE_HZ = 765e6
"""The A100 PCIe's base clock (data sheet)."""
_MEMORY_S = 2.0
"""How long the card keeps a clock that it was raised to: with 1.8 s some pairs below still differ."""
_RAISES_S = 0.1
"""Work in that time that raises the clock; shorter work never did."""
_STEP = 1.25
"""A config's slowest run over its fastest, beyond which the clock changed under it; noise and warming up stay below."""


@dataclass(frozen=True)
class Run:
    """One config in the order of the record: when it ended (s), its run times (s), what it was."""

    end_s: float
    times_s: Array
    config: tuple[int, ...]

    @property
    def start_s(self) -> float:
        """When it began to run, compiled."""
        return self.end_s - float(self.times_s.sum())

    @property
    def step(self) -> float:
        """Its slowest run over its fastest, without the first two, in which the card wakes up."""
        rest = self.times_s[2:]
        return float(rest.max() / rest.min())


def runs(folder: Path) -> list[Run]:
    """What ran, in the order in which it did; `folder`: shared data, `spaces`."""
    with gzip.open(folder / FILE) as file:
        record: list[dict[str, Any]] = json.load(file)["results"]
    found = [
        Run(
            datetime.datetime.fromisoformat(one["timestamp"]).timestamp(),
            np.array(one["times"]["runtimes"]) * 1e-3,
            tuple(int(one["configuration"][name]) for name in TUNABLES),
        )
        for one in record
        if one["invalidity"] == "correct"
    ]
    return sorted(found, key=lambda run: run.end_s)


def at_base_clock(found: list[Run]) -> dict[tuple[int, ...], bool]:
    """Config -> whether all its runs were at the clock of a card that was idle before."""
    kept = {}
    for at, run in enumerate(found):
        busy_s, before = 0.0, at - 1
        while before >= 0 and found[before].end_s > run.start_s - _MEMORY_S:
            busy_s += float(found[before].times_s.sum())
            before -= 1
        kept[run.config] = busy_s < _RAISES_S and run.step < _STEP
    return kept


def main() -> int:
    """Prints what the record says of its clocks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    folder = parser.parse_args().data / "spaces"
    if not (folder / FILE).is_file():
        print(f"no {folder / FILE}: nothing to look at (--data names the folder of recorded data)")
        return 0
    found = runs(folder)
    base = at_base_clock(found)
    time_s = {run.config: float(np.median(run.times_s)) for run in found}
    print(f"{len(found)} configs ran; {sum(base.values())} of them at the base clock from first to last")
    steps = [run.step for run in found if run.step > 1.5]
    print(f"{len(steps)} stepped to another clock while they ran: by {np.median(steps):.2f} (median), {max(steps):.2f}")
    read_only, shared = TUNABLES.index("read_only"), TUNABLES.index("use_shmem")
    for label, wanted in (("both at the base clock", True), ("one of them not", False)):
        ratios = []
        for config, seconds in time_s.items():
            if config[shared] == 1 and config[read_only] == 1:
                twin = (*config[:read_only], 0, *config[read_only + 1 :])
                if twin in time_s and (base[config] and base[twin]) == wanted:
                    ratios.append(seconds / time_s[twin])
        low, middle, high = np.quantile(ratios, [0.0, 0.5, 1.0])
        share = np.mean(np.array(ratios) < 0.8)
        print(
            f"pairs that differ in read_only alone, {label}: {len(ratios)}, time over the other's {low:.2f} to "
            f"{high:.2f}, median {middle:.2f}; below 0.8: {share:.1%}"
        )
    print("the fastest:")
    for config in sorted(time_s, key=lambda one: time_s[one])[:12]:
        text = " ".join(f"{name}={value}" for name, value in zip(TUNABLES, config, strict=True))
        print(f"  {time_s[config] * 1e3:.3f} ms  {'base clock' if base[config] else 'raised'}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
