"""Formats for fuzzing: real samples of each format, the function that damages them, and kernrec's reader."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.coverage import tally
from kernrec.store.measurement import Measurement
from kernrec.store.query_file import query_file
from kernrec.store.share.withdraw import retraction_rows
from kernrec.util.files import scratch_folder
from tests.fuzz import damage, instructions
from tests.helpers import foreign_files
from tests.helpers.paths import ROOT
from tests.helpers.sharing import USUAL, merge, profile_row

GPU, KERNEL = "h200-sxm", "matmul_simt"
_SEEN: set[str] = set()
_EXPRESSIONS = (
    b"block_x * block_y <= 1024 and (tile == 1 or block_x % 32 == 0)",
    b"ceil_div(n, block_x * tile) if vector else max(1, n // block_x)",
    b"min(log2(m), 16) + abs(-n) ** 2",
)
_ARGUMENTS = (b"x=f32[500]", b"y=zeros:f32[500]", b"i32:500", b"t=texture(linear,wrap,normalized):u8[48x64]")
_CSV = b"bx,tile,time_ms,power_w,num_regs,outcome\n32,1,0.4,120,40,ok\n64,2,0.5,130.5,48,ok\n128,1,,,,compile\n"


@dataclass(frozen=True)
class Format:
    name: str
    file: str
    """File name of each case."""
    samples: tuple[bytes, ...]
    """Contents of undamaged files."""
    read: Callable[[Path], Any]
    """Function that reads a file as kernrec's commands do."""
    damage: Callable[[bytes, random.Random], bytes] = damage.text
    apart: bool = False
    """Whether kernrec reads the format in a separate process, which may crash."""


def formats(extra: Path | None, work: Path) -> Iterator[Format]:
    """Yield the formats, with samples from the folder `extra` too. The folder `work` gets the samples written here."""
    yield from _texts(extra)
    yield from _tables(work)
    yield from _stored(work)
    yield from _bundled(work)
    yield from _learned(work)


def _texts(extra: Path | None) -> Iterator[Format]:
    from kernrec.interop.read_results import read_results
    from kernrec.interop.results import ReadOptions
    from kernrec.interop.t1 import load_spec
    from kernrec.kernel.expression import parse as parse_expression
    from kernrec.op.workload import load_workload
    from kernrec.profile.launch_arguments import read_arguments
    from kernrec.profile.ptx_kernel import file_launch
    from kernrec.ptx import emulate
    from kernrec.ptx import parse as parse_ptx

    def files(ending: str, *patterns: str) -> tuple[bytes, ...]:
        paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        paths += sorted(extra.rglob(f"*{ending}")) if extra else []
        return tuple(path.read_bytes() for path in paths if path.stat().st_size < 1 << 16)

    def emulated(path: Path) -> None:
        arguments = read_arguments(["f32:2", "x=f32[500]", "y=f32[500]", "i32:500"])
        made = file_launch(path, arguments, (4,), (128,))
        emulate(made.module, made.launch, check_races=True, budget=100_000)

    source = ROOT / "docs" / "examples" / "blur.cu"
    ptx = files(".ptx", "docs/examples/*.ptx")
    yield Format("ptx", "case.ptx", ptx, lambda path: parse_ptx(_text(path)))
    yield Format("emulate", "case.ptx", ptx[:1], emulated)
    yield Format(
        "instruction", "case.ptx", (instructions.SAMPLE,), instructions.executed, instructions.other_instruction
    )
    yield Format("argument", "case.txt", _ARGUMENTS, lambda path: read_arguments([_text(path)]))
    yield Format("expression", "case.txt", _EXPRESSIONS, lambda path: parse_expression(_text(path)))
    specs = files(".kernel.toml", "docs/examples/blur.toml", "datasets/kernels/textbook/*.toml")
    yield Format("spec", "case.toml", specs, partial(load_spec, source=source))
    yield Format("t1", "case.json", files(".t1.json", "datasets/kernels/*.json"), partial(load_spec, source=source))
    yield Format("workload", "case.toml", files(".workload.toml", "datasets/workloads/*.toml"), load_workload)
    t4 = json.dumps(foreign_files.document(foreign_files.result())).encode()
    yield Format("t4", "case.json", (t4,), read_results)
    kernel_tuner = foreign_files.cache(foreign_files.entry(), foreign_files.entry(bx=64)).encode()
    yield Format("kernel-tuner", "case.json", (kernel_tuner,), read_results)
    for name in ("ncu_metrics.csv", "ncu_raw.csv"):
        sample = ROOT / "tests" / "interop" / "samples" / name
        options = ReadOptions(kernels=("copy_sweep_grid_shape", "smooth"))
        case = f"case{sample.suffix}"
        yield Format(sample.stem, case, (sample.read_bytes(),), partial(read_results, options=options))
    yield from _tuned_configs()


def _tuned_configs() -> Iterator[Format]:
    from kernrec.interop.moe_configs import TILES, read_moe_configs, write_moe_configs
    from kernrec.interop.read_results import read_results

    def read(path: Path) -> object:
        return read_moe_configs(path.read_text(encoding="utf-8", errors="replace"), path.name)

    tiles = dict.fromkeys(TILES, 4)
    yield Format("experts", "case.json", (write_moe_configs({1: tiles, 16: tiles}, "3.4.0").encode(),), read)
    usual = {"num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None, "ir_override": None}
    cache = {"key": [64], "configs_timings": [[{"kwargs": {"BLOCK": 64}} | usual, [0.5, 0.4, 0.6]]]}
    yield Format("autotune-cache", "case.json", (json.dumps(cache).encode(),), read_results)


def _tables(work: Path) -> Iterator[Format]:
    import duckdb

    from kernrec.interop.read_results import read_results
    from kernrec.interop.results import ReadOptions
    from kernrec.profile.tensor_values import load_npy

    read = partial(read_results, options=ReadOptions(("bx", "tile")))
    yield Format("csv", "case.csv", (_CSV,), read)
    (csv := work / "rows.csv").write_bytes(_CSV)
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM read_csv('{csv}')) TO '{work / 'rows.parquet'}' (FORMAT parquet)")
    parquet = (work / "rows.parquet").read_bytes()
    yield Format("recording", "case.parquet", (parquet,), read, damage.binary, apart=True)
    np.save(work / "values.npy", np.arange(500, dtype=np.float32))
    yield Format("npy", "case.npy", ((work / "values.npy").read_bytes(),), load_npy, damage.binary)


def _stored(work: Path) -> Iterator[Format]:
    from kernrec.measure.campaign.ingest import ingest
    from kernrec.measure.campaign.journal import Journal, waiting_measurements

    path = work / "own.duckdb"
    measurements = _measurements()
    with Database.open(path, read_only=False, create=True) as database:
        keys = database.add_measurements(measurements)
        database.add_profiles([profile_row(sm=90)])
        database.add("retraction", retraction_rows(keys[:1], "the fan was broken"))
        rows = {table: database.rows(table) for table in ("config", "problem", "profile", "measurement", "retraction")}

    def merged(path: Path) -> None:
        merge(_emptied(), path)
        _used(_empty())

    yield Format("database", "case.duckdb", (path.read_bytes(),), merged, damage.duckdb_file, apart=True)
    yield Format("asked", "case.duckdb", (path.read_bytes(),), _asked, damage.duckdb_file, apart=True)

    def taken(path: Path) -> None:
        """Merge damaged rows with valid keys from an untrusted user. Local answers must not change."""
        with Database.memory() as theirs:
            for table, values in json.loads(_text(path)).items():
                theirs.add(table, values)
            segments = [theirs.export(f"FROM db.{table}", path.parent) for table in rows]
        from kernrec.store.reader import checked_segments

        files = {table: [file] for table, (file, _) in zip(rows, segments, strict=True)}
        _emptied().add_measurements(measurements)
        before = _answers(_empty())

        with scratch_folder() as folder:
            checked_segments([files], folder, "segments")
            _empty().add_from(folder, signer="")
        _used(_empty())
        after = _answers(_empty())
        assert before.items() <= after.items(), "merged rows changed what was measured here"

    measurement_rows = rows["measurement"]
    plain = {
        table: [{k: v for k, v in row.items() if k != f"{table}_id"} for row in of_table]
        for table, of_table in rows.items()
    }
    sample = json.dumps(plain, default=str).encode()
    yield Format("rows", "case.json", (sample,), taken, damage.cells, apart=True)

    def replayed(path: Path) -> None:
        database = Path(str(path).removesuffix(".wal"))
        shutil.copyfile(work / "crashed.duckdb", database)
        log = path.read_bytes()
        try:
            merge(_emptied(), database)
            _asked(database)
        finally:
            path.write_bytes(log)

    def derived(path: Path) -> None:
        """Add damaged rows to the tables that record who signed which rows. Answers must not change."""
        import duckdb

        shutil.copyfile(work / "own.duckdb", changed := path.parent / "changed.duckdb")
        with duckdb.connect(changed) as connection:
            for table, values in json.loads(_text(path)).items():
                for row in values:
                    marks = ", ".join("?" * len(row))
                    try:
                        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])
                    except (duckdb.Error, UnicodeError, ValueError):  # the value does not fit the column's type
                        return
        assert _asked_answers(changed) == expected, "a derived table changed an answer"

    expected = _asked_answers(work / "own.duckdb")
    first = {name: measurement_rows[0][name] for name in ("measurement_id", "gpu", "problem_id")}
    scale = {"gpu": GPU, "contributor": "", "board": "", "latency_scale": 2.0, "energy_scale": None}
    scale |= {"latency_ratio": 2.0, "energy_ratio": None, "configs": 5}
    others = {"merged": [first | {"signer": ""}], "gpu_scale": [scale]}
    others["merged_row"] = [{"row_id": rows["profile"][0]["profile_id"], "signer": "5f" * 32}]
    yield Format("derived", "case.json", (json.dumps(others).encode(),), derived, damage.cells, apart=True)
    _crashed(work / "crashed.duckdb", measurements)
    log = (work / "crashed.duckdb.wal").read_bytes()
    yield Format("wal", "own.duckdb.wal", (log,), replayed, damage.binary, apart=True)

    lines = [json.dumps({"row": each.as_json()}) for each in measurements]
    lines += [
        json.dumps({"closed": 0, "session": "monday"}),
        json.dumps({"drifted": 1, "session": "monday", "error": "x"}),
    ]

    def ingested(path: Path) -> None:
        own = Path(str(path).removesuffix(".journal.sqlite"))
        with suppress(OSError):  # commands print this error in one line
            waiting_measurements(own)
        with Journal(own) as journal:
            journal.records()
            ingest(journal)

    with Journal(work / "left") as journal:
        journal.append(*(json.loads(line) for line in lines))
    tables = (work / "left.journal.sqlite").read_bytes()
    yield Format("journal", "own.duckdb.journal.sqlite", (tables,), ingested, damage.sqlite_file)


def _crashed(path: Path, measurements: Sequence[Measurement]) -> None:
    """Write a database and its log as left behind by a process that is killed after storing measurements."""
    aside = path.with_name("open.duckdb")
    with Database.open(aside, read_only=False, create=True) as database:
        database.add_measurements(measurements)
        for ending in ("", ".wal"):
            shutil.copyfile(f"{aside}{ending}", f"{path}{ending}")


def _bundled(work: Path) -> Iterator[Format]:
    from kernrec.store.keys import Signer, make_key
    from kernrec.store.share.bundle import read_bundle, write_bundle
    from kernrec.store.share.manifest import Manifest
    from kernrec.store.share.outgoing import Selection, provenance, write_segments
    from kernrec.store.share.place import MANIFEST, place_at
    from tests.helpers.sharing import import_bundle

    selection = Selection()
    (folder := work / "segments").mkdir()
    with Database.open(work / "own.duckdb") as database:
        segments = write_segments(database, selection, "secret", folder)
        about, schema = provenance(database, selection), database.schema
    manifest = Manifest(tuple(segments), (), "2026-03-01T12:00:00", "kernrec", provenance=about, schema=schema)
    make_key(work / "key")
    files = {each.name: folder / f"{each.sha256}.parquet" for each in segments}
    for place in (work / "bundle", work / "bundle.zip"):
        write_bundle(place_at(place), manifest, files, Signer.of(work / "key"))

    def imported(path: Path) -> None:
        import_bundle(_emptied(), read_bundle(place_at(path)))
        _used(_empty())

    yield Format("bundle-zip", "case.zip", ((work / "bundle.zip").read_bytes(),), imported, damage.binary, apart=True)

    def within(path: Path) -> None:
        (bundle := path.parent / "bundle").mkdir()
        shutil.copytree(work / "bundle", bundle, dirs_exist_ok=True)
        shutil.copyfile(path, bundle / path.name)
        imported(bundle)

    # Use an unsigned manifest. In a damaged signed manifest, only the signature would be checked.
    yield Format("manifest-json", MANIFEST, (manifest.to_bytes(),), within, apart=True)
    signature = "manifest.sig"
    yield Format("manifest-sig", signature, ((work / "bundle" / signature).read_bytes(),), within, apart=True)

    def segment(path: Path) -> None:
        """Import a bundle whose measurements are the file `path`, with a matching manifest."""
        changed = json.loads(manifest.to_bytes())
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        for each in changed["segments"]:
            if each["table"] == "measurement":
                each |= {"sha256": digest, "size": len(content)}
        (bundle := path.parent / "bundle").mkdir()
        shutil.copytree(work / "bundle", bundle, dirs_exist_ok=True)
        shutil.copyfile(path, bundle / "segments" / f"{digest}.parquet")
        (bundle / MANIFEST).write_text(json.dumps(changed))
        imported(bundle)

    (measured,) = (files[each.name].read_bytes() for each in segments if each.table == "measurement")
    yield Format("segment", "case.parquet", (measured,), segment, damage.binary, apart=True)


def _learned(work: Path) -> Iterator[Format]:
    from kernrec.model.analytical import calibration
    from kernrec.model.learn.model_file import TREES, load, save
    from kernrec.training.boosting import TrainingSettings
    from kernrec.training.dataset import Dataset
    from kernrec.training.train_model import train
    from tests.helpers.simulated_groups import simulated_groups, simulated_inputs

    inputs = simulated_inputs(20, 5)
    model = train(Dataset(tuple(simulated_groups(6, rows=12))), TrainingSettings(rounds=5, depth=2, threads=1))
    analytical = {"probe": [1.0], "calibrations": {"sm_89": "abc"}}
    training = {"measurements": 3, "mark": "0123", "rows": 72, "problems": ["problem 0"], "data_sha256": "0" * 64}
    card = save(model, work / "models", "matmul", training | {"prior": analytical})

    def loaded(path: Path) -> None:
        for file in card.parent.iterdir():
            if not (path.parent / file.name).exists():
                shutil.copyfile(file, path.parent / file.name)
        model, _ = load(path.parent / card.name)
        model.log_ratio(inputs)

    yield Format("model-card", card.name, (card.read_bytes(),), loaded)
    about = json.loads(card.read_bytes())
    trees = about["heads"]["latency"]["file"]

    def trees_loaded(path: Path) -> None:
        about["heads"]["latency"] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        (path.parent / card.name).write_text(json.dumps(about))
        loaded(path)

    yield Format("trees", f"case{TREES}", ((card.parent / trees).read_bytes(),), trees_loaded, damage.binary)
    fitted = calibration.Calibration("sm_90", rows=3, gpus=(GPU,), problems=1, time_factor=(1.5, 1.1))
    made = calibration.save({"sm_90": fitted}, work / "calibrations")
    yield Format("calibration", made.name, (made.read_bytes(),), lambda path: calibration.load(path.parent))


@cache
def _empty() -> Database:
    return Database.memory()


def _emptied() -> Database:
    _empty().change(f"DELETE FROM db.{table}" for table, count in _empty().counts().items() if count)
    return _empty()


def _answers(database: Database) -> dict[str, tuple[object, ...]]:
    key = find_op("matmul").problem(m=64, n=32, k=16).key
    rows = database.measured(GPU, [KERNEL], key)
    return {
        json.dumps([row.config, row.kernel_hash, row.power_limit_w, row.locked_sm_clock_hz]): (
            row.latency_s, row.energy_j, row.power_w, row.sessions, row.measured_at
        )
        for row in rows
        if not row.merged
    }  # fmt: skip


def _asked(path: Path) -> None:
    with Database.open(path) as database:
        _used(database)


def _asked_answers(path: Path) -> list[tuple[object, ...]]:
    with Database.open(path) as database:
        rows = database.measured(GPU, [KERNEL], find_op("matmul").problem(m=64, n=32, k=16).key)
    return sorted((json.dumps(row.config), row.latency_s, row.energy_j, row.sessions) for row in rows)


def _used(database: Database) -> None:
    """Run the database queries of the commands, unless a database with the same content was queried before."""
    if (content := database.content_hash()) in _SEEN:
        return
    _SEEN.add(content)
    for gpu, kernel, problem in {(each.gpu, each.kernel, each.problem.key) for each in database.measurements()}:
        database.measured(gpu, [kernel], problem)
    for row in database.rows("profile"):
        database.profiles(str(row["kernel"]), str(row["kernel_hash"]), int(str(row["sm"])))
    for view in ("answer", "best", "front"):
        database.rows(view)
    tally(database)
    query_file(Path(database.path), Database.open)
    database.conflicts()


def _measurements() -> list[Measurement]:
    usual = USUAL | {"block": 0, "energy_j": 0.2, "latency_samples_s": [1e-3, 2e-3, 5e-4], "ecc": True}
    usual |= {"event_reasons": {"power cap": 0.5}, "registers": 40}
    failed: dict[str, object] = {"outcome": "compile", "latency_s": None, "energy_j": None, "error": "no such type"}
    rows = [{"position": i, "config": {"block_m": 16 << i}} | (failed if i == 2 else {}) for i in range(4)]
    return [Measurement.from_columns(usual | row) for row in rows]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
