"""Kill commands that measure, add and share rows, and count the rows that were lost, doubled or half written.

    python -m tests.kills [--kills 500] [--seed 1] [--commands collect,contribute,...]

`SHARES` divides the kills among the commands, which check files in their own process. The exit status is 1 if rows were
lost, doubled or half written.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.helpers.reading import reading_here
from tests.kills.adding import kill_add, kill_collect, kill_merge_by_clocks
from tests.kills.changing import kill_contribute, kill_migration, kill_train, kill_withdraw
from tests.kills.sharing import kill_sharing

COMMANDS: Mapping[str, Callable[[Path, int, int], Counter[str]]] = {
    "collect": lambda folder, kills, seed: kill_collect(folder, kills, 20 * kills, seed),
    "refine": lambda folder, kills, seed: kill_collect(folder, kills, 20 * kills, seed, "refine"),
    "genetic": lambda folder, kills, seed: kill_collect(folder, kills, 20 * kills, seed, "genetic"),
    "contribute": kill_contribute,
    "merge": lambda folder, kills, seed: kill_add(folder, "merge", kills, 1000, seed),
    "clocks": kill_merge_by_clocks,
    "import": lambda folder, kills, seed: kill_add(folder, "import", kills, 1000, seed),
    "push": lambda folder, kills, seed: kill_sharing(folder, "push", kills, 20 * kills, seed),
    "pull": lambda folder, kills, seed: kill_sharing(folder, "pull", kills, 20 * kills, seed),
    "withdraw": kill_withdraw,
    "migration": kill_migration,
    "train": kill_train,
}
SHARES = {"clocks": 2.0, "pull": 2.0, "refine": 0.3, "genetic": 0.3, "contribute": 0.3, "train": 0.5}
"""Relative number of kills per command (default 1): few for slow commands, many for commands that once lost rows."""
BAD = ("lost", "doubled", "halved", "unreadable", "refused")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", default=",".join(COMMANDS), help="separated by commas; default: all")
    arguments = parser.parse_args()
    chosen = arguments.commands.split(",")
    if strange := [name for name in chosen if name not in COMMANDS]:
        parser.error(f"unknown command {strange[0]}, there are {', '.join(COMMANDS)}")
    bad = 0
    shares = [SHARES.get(name, 1.0) for name in chosen]
    for place, name in enumerate(chosen):
        ends = (round(arguments.kills * sum(shares[:count]) / sum(shares)) for count in (place, place + 1))
        kills = -next(ends) + next(ends)
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kills-") as folder, reading_here():
            counts = COMMANDS[name](Path(folder), kills, arguments.seed)
        bad += sum(counts[each] for each in BAD)
        seen = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
        nothing = ", ".join(f"0 {each}" for each in BAD if each in counts and not counts[each])
        print(f"{name:11} {kills:4} starts: {seen}; {nothing} ({time.monotonic() - started_s:.0f} s)", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
