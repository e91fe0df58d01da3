"""Are measurements repeatable? Measures configs of a database again, in another process, and compares.

    python tools/repeat.py kernrec.duckdb [--configs 20]

Takes configs whose energy was measured on this card, from as many problems as possible, and measures them at the same
tier. Passes when the median difference and nine of ten differences are within 2 % in latency and 4 % in energy.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.kernel import find_kernel, kernel_names
from kernrec.measure.device.interface import MeasurementFailure
from kernrec.measure.device.nvml import choose_cards
from kernrec.measure.protocol.measure_config import VERSION
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.op import problem_from_key
from kernrec.store import Database

LATENCY, ENERGY = 0.02, 0.04


def main() -> int:
    """Prints a line for each config; exit status 1 when they differ too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--configs", type=int, default=20)
    parser.add_argument("--gpu", default="auto")
    arguments = parser.parse_args()
    try:
        card = choose_cards(arguments.gpu)[0]
        chosen = choose(arguments.database, card.uuid_hash, arguments.configs)
        if not chosen:
            print(f"repeat.py: {arguments.database} holds no energy measured on this card", file=sys.stderr)
            return 2
        return compare(chosen, card.uuid)
    except KernrecError as error:
        print(f"repeat.py: {error}", file=sys.stderr)
        return error.exit_status


def choose(database: Path, uuid_hash: str, count: int) -> list[dict[str, Any]]:
    """Rows with energy of today's protocol and kernels on a card, one config each, spread over its problems."""
    with Database.open(database) as opened:
        configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in opened.rows("config")}
        keys = {row["problem_id"]: str(row["key"]) for row in opened.rows("problem")}
        rows = opened.rows("measurement", device_uuid_hash=uuid_hash, outcome="ok", protocol_version=VERSION)
    by_problem: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        kernel = find_kernel(str(row["kernel"])) if row["kernel"] in kernel_names() else None  # or one of the user's
        if row["energy_j"] is not None and kernel is not None and kernel.hash == row["kernel_hash"]:
            rows_of = by_problem.setdefault(keys[row["problem_id"]], {})
            rows_of[str(row["config_id"])] = row | {"config": configs[row["config_id"]], "key": keys[row["problem_id"]]}
    draw = random.Random(0)
    piles = [draw.sample(list(each.values()), len(each)) for each in by_problem.values()]
    spread = [pile[i] for i in range(count) for pile in piles if i < len(pile)]
    return sorted(spread[:count], key=lambda row: row["key"])


def compare(rows: list[dict[str, Any]], uuid: str) -> int:
    """Measure the rows' configs again; 1 when they differ too much."""
    differences: dict[str, list[float]] = {"latency_s": [], "energy_j": []}
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        client = WorkerClient({"device": "cuda", "uuid": uuid, "scratch": scratch})
        try:
            client.request(60.0, "probe")
            prepared = ""
            for row in rows:
                if row["key"] != prepared:
                    client.request(900.0, "prepare", problem=row["key"])
                    prepared = row["key"]
                request = {"kernel": row["kernel"], "config": row["config"], "problem": row["key"], "tier": row["tier"]}
                try:
                    again = client.request(120.0, "measure", best_s=None, **request)
                except MeasurementFailure as failure:
                    print(f"{row['key']} {row['config']}: {failure}")
                    return 1
                changes = {cost: again[cost] / row[cost] - 1.0 for cost in differences if again.get(cost)}
                for cost, change in changes.items():
                    differences[cost].append(abs(change))
                shown = ", ".join(f"{cost} {change:+.2%}" for cost, change in changes.items())
                print(f"{problem_from_key(row['key']).key} {row['kernel']} {row['tier']}: {shown}", flush=True)
        finally:
            client.stop()
    failed = False
    for cost, allowed in (("latency_s", LATENCY), ("energy_j", ENERGY)):
        values = np.array(differences[cost])
        middle, most = (float(np.quantile(values, q)) for q in (0.5, 0.9)) if len(values) else (np.inf, np.inf)
        failed |= most > allowed
        print(
            f"{cost}: {len(values)} configs, median difference {middle:.2%}, nine of ten within {most:.2%}"
            f" (allowed {allowed:.0%})"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
