"""`kernrec contribute`: measure useful configs on a GPU, and write the measurements to signed bundles for others."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import options
from kernrec.cli.collect import Gpu, run_measuring
from kernrec.cli.options import option
from kernrec.cli.quantity import budget as parse_budget
from kernrec.cli.share import print_manifest
from kernrec.errors import UsageError, file_errors
from kernrec.util.human import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernrec.measure.request import CollectResult
    from kernrec.store.share.outgoing import Outgoing

FOLDER = "contributed"
"""Folder for the bundles, in the current folder."""


class ContributeOptions(options.Options):
    budget: Annotated[str, option("When to stop: 10m, 1h or 200configs; 0m only writes the bundle.")] = "10m"
    gpu: Gpu = "auto"


@options.takes(ContributeOptions)
def contribute(wanted: ContributeOptions) -> None:
    """Measure useful configs on a GPU of this machine, and write them to a small signed bundle for others.

    First, a fixed set of configs is measured, which is the same for all GPUs. Next come the configs that the models are
    most uncertain about. Measurements are stored in contributed.duckdb beside your database, or in --db. The bundle
    contains all measurements in this file that earlier bundles in the folder `contributed` lack. Nothing leaves this
    machine: you send the bundle yourself.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.collect import collect
    from kernrec.measure.request import CollectRequest, Strategy
    from kernrec.store.keys import make_own_key

    database = wanted.db or wanted.database.with_name("contributed.duckdb")
    make_own_key()  # Report an unusable key now, not after ten minutes of measuring.
    if not re.fullmatch(r"\s*0+\s*[A-Za-z]+\s*", wanted.budget):
        budget = CampaignBudget(*parse_budget("--budget", wanted.budget))
        request = CollectRequest(None, database, wanted.gpu, strategy=Strategy.PLAN, budget=budget)
        run_measuring(lambda report, stopping: [(request.point, collect(request, report, stopping))], _show)
    _write(database)


def _show(result: "CollectResult") -> None:
    problems = sum(each.measured > 0 for each in result.results)
    rows = sum(each.measured for each in result.results)
    print(f"{counted(rows, 'row')} of {counted(problems, 'problem')} measured")
    if result.stopped or result.error is not None:
        print("no bundle was written: run the same command to resume, or `kernrec contribute --budget 0m`")


def _write(database: Path) -> None:
    """Write one bundle per GPU, with the measurements that earlier bundles in the folder lack."""
    from kernrec.store.keys import Signer, key_file
    from kernrec.store.share.manifest import LICENCE
    from kernrec.store.share.outgoing import Selection
    from kernrec.store.share.place import Folder
    from kernrec.store.share.push import push

    def agree(leaving: "Sequence[Outgoing]", withdrawn: int) -> bool:
        for each in leaving:
            print_manifest(each.manifest)
        return True

    if not database.exists():
        raise UsageError(f"there is no database at {database}; give a --budget")
    folder = Path(FOLDER)
    with file_errors(folder, "created"):
        folder.mkdir(exist_ok=True)
    place = Folder(folder)
    before = set(place.names())
    push(place, database, Selection(), Signer.of(key_file()), LICENCE, agree=agree)
    if not (new := sorted(set(place.names()) - before)):
        raise UsageError(f"{folder} has all measurements of {database} already; give a --budget")
    for name in new:
        print(f"written to {folder / name}, {(folder / name).stat().st_size:,} bytes, licence {LICENCE}")
    print("Nothing has left this machine. To send it, copy it to the same folder of datasets/contributed in a fork of")
    print("the project and open a pull request (docs/guides/contribute.md).")
