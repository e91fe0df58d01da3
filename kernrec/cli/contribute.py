"""`kernrec contribute`: measure a fixed plan on a GPU, and write one small signed bundle of it for others."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli import measuring, options
from kernrec.cli.quantity import budget as parse_budget
from kernrec.cli.table import table_lines
from kernrec.errors import UsageError, file_errors
from kernrec.util.atomic_write import write_whole
from kernrec.util.human import counted, human

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernrec.measure.request import CollectResult
    from kernrec.store.share.contribution import Contribution

FOLDER = "contributed"
"""Folder for written bundles, with the same subfolders as a shared folder."""


class ContributeOptions(options.Options):
    """The options of `kernrec contribute`."""

    budget: Annotated[str, typer.Option(help="10m, 1h or 200configs; 0m: only write what is measured.")] = "10m"
    gpu: measuring.Gpu = "auto"
    replay: measuring.Replay = None


@options.takes(ContributeOptions)
def contribute(wanted: ContributeOptions) -> None:
    """Measure useful configs on a GPU of this machine, and write a small signed bundle of them for others.

    A fixed part comes first, the same on every GPU. The problems and configs that the models are most uncertain about
    follow. The rows enter your database, too. Nothing leaves this machine: you send the bundle, and a text beside it
    describes its contents. After an interruption, the next run's bundle includes what was already measured.
    """
    from kernrec.measure.campaign.results import CampaignBudget
    from kernrec.measure.collect import collect
    from kernrec.measure.request import CollectRequest, Strategy
    from kernrec.store.keys import make_own_key
    from kernrec.store.share.contribution import add_pending, pending_gpus, pending_sessions

    replay, db = measuring.replay_files(wanted.replay, wanted.db)
    database = db or paths.user_database()
    if re.fullmatch(r"\s*0+\s*[A-Za-z]+\s*", wanted.budget):
        rows = pending_gpus(database)
        if not rows:
            raise UsageError(f"{database} has no unbundled measurements; give a --budget")
        for name in rows:
            _write(database, name)
        return
    seconds, configs = parse_budget("--budget", wanted.budget)
    make_own_key()  # report a missing signing package before measuring for ten minutes
    request = CollectRequest(
        problems=None,
        database=database,
        gpu=wanted.gpu,
        recording=replay,
        strategy=Strategy.PLAN,
        budget=CampaignBudget(seconds, configs),
        resumed=pending_sessions(database),  # the fixed part of a bundle must be measured for that bundle
    )
    cards: list[str] = []

    def begun(session: str, name: str) -> None:
        add_pending(database, session)
        cards.append(name)

    def show(result: "CollectResult") -> None:
        problems = sum(each.measured > 0 for each in result.results)
        rows = sum(each.measured for each in result.results)
        print(f"{counted(rows, 'row')} of {counted(problems, 'problem')} {'replayed' if replay else 'measured'}")
        if result.stopped or result.error is not None:
            print(
                "no bundle was written: run the same command to resume, or `kernrec contribute --budget 0m` to "
                "bundle what is finished"
            )

    measuring.run_measuring(lambda report, stopping: collect(request, report, stopping, begun), show)
    _write(database, cards[0])


def _write(database: Path, gpu: str) -> None:
    """Write the bundle of a GPU, and describe its contents in a text file and on standard output."""
    from kernrec.store.keys import Signer, key_file, make_own_key
    from kernrec.store.share.contribution import write_contribution

    make_own_key()
    written = write_contribution(database, gpu, Signer.of(key_file()), Path(FOLDER))
    text = summary(written)
    beside = written.path.with_suffix(".txt")
    with file_errors(beside, "written"):
        write_whole(beside, text.encode(), shared=True)
    print(text, end="")


def summary(written: "Contribution") -> str:
    """Return the text that describes a bundle to sender and receiver, without paths of this machine."""
    from kernrec.gpu import find_gpu
    from kernrec.store.share.contribution import MOST_BYTES
    from kernrec.store.share.manifest import bundle_name

    manifest = written.leaving.manifest
    days = sorted(set(manifest.provenance.get("days", [])))
    name = bundle_name(manifest)
    numbers = ("problems", "configs", "rows", "energies", "failed")
    columns = [("op", "left"), ("kernel", "left"), *((column, "right") for column in numbers)]
    lines = [
        f"Measurements of {find_gpu(written.gpu).title}, for kernrec",
        "",
        f"file      {written.path.name}, {written.size:,} bytes, and this text",
        f"signed    by {manifest.owner}",
        f"licence   {manifest.licence}",
        f"made by   {manifest.made_by}{_listed(' with driver', written.drivers)}, protocol"
        f" {', '.join(map(str, written.protocols))}",
        f"measured  {' to '.join(days) or 'on a day that was not recorded'}",
        f"rows      {', '.join(counted(count, table) for table, count in manifest.rows.items() if count)}",
        "",
        *table_lines(None, columns, [[str(row[column]) for column, _ in columns] for row in written.kernels], None),
        "",
        "The fixed part, the same on every GPU:",
        *(_fixed_line(row) for row in written.fixed),
        "",
        *_comparison(written),
        "A row contains what ran (GPU, kernel and its hash, config, problem), the results (times, energy, power), and",
        "conditions: versions of driver, CUDA and protocol, limits, clocks, temperature, other processes on the GPU.",
        "It contains no name of a user or machine, no path, and no UUID of a GPU. A number that only your database can",
        "link to the GPU distinguishes rows of several GPUs.",
        *(f"{column} is anonymized in {counted(count, 'row')}" for column, count in written.leaving.changed.items()),
        "",
    ]
    if written.size > MOST_BYTES:
        lines += [f"It is larger than the {MOST_BYTES:,} bytes of ten minutes.", ""]
    if written.replayed:
        lines += ["These rows repeat a recording. They are only an example, and no place accepts them.", ""]
    else:
        lines += [
            "Nothing has left this machine. To send it, put the file into a copy of the project, as",
            f"    datasets/contributed/{name}",
            "and open a pull request; datasets/contributed/README.md says how.",
            "",
        ]
    return "\n".join(line.rstrip() for line in lines)


def _listed(title: str, values: tuple[str, ...]) -> str:
    return f"{title} {', '.join(values)}" if values else ""


def _comparison(written: "Contribution") -> list[str]:
    """Compare the GPU with others of its model, if their fixed part is in a database here."""
    from kernrec.store.card_scales import unlike
    from kernrec.store.share.contribution import ratio_to_others

    if (compared := ratio_to_others(written.fixed)) is None:
        return []
    ratio, configs = compared
    lines = [f"Its times are {ratio:.2f} times those of others on the same GPU ({counted(configs, 'config')})."]
    if unlike(ratio):
        lines += [
            "This differs from its model. Heat, a power limit, a laptop or another board may be the cause. The bundle",
            "is still welcome: before rows are combined, each GPU's are scaled to its model.",
        ]
    return [*lines, ""]


def _fixed_line(row: "Mapping[str, object]") -> str:
    latency_s, energy_j = row["latency_s"], row["energy_j"]
    cost = "not measured"
    if isinstance(latency_s, float):
        cost = human(latency_s, "s")
        if isinstance(energy_j, float):
            cost += f", {human(energy_j, 'J')}"
        if isinstance(others_s := row["others_s"], float):
            cost += f" ({latency_s / others_s:.2f} x others')"
    return f"  {row['bound']!s:12}  {cost:24}  {row['kernel']} on {row['problem']}"
