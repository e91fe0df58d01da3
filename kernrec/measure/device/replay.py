"""Replay recorded measurements as a device: run times with their noise, power if it was measured, and failures.

kernrec ships one recording: all configs of Kernel Tuner's 2-D convolution (f32, 15 x 15 filter, 4096 x 4096 outputs) on
an RTX A4000. The source of this kernel is not shipped, so its configs have no profiles. They can be replayed, searched
and refined, but not predicted, explained or learned from.
"""

import json
import os
import threading
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError, cannot_be, unknown
from kernrec.gpu import find_gpu
from kernrec.kernel.spec_reader import kernel_from
from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo, MeasurementFailure
from kernrec.measure.device.simulated import SimulatedGpu, SimulatedKernel, SimulatedSensors
from kernrec.op import Problem, problem_from_key
from kernrec.store import Database, canonical_json
from kernrec.store.measurement import Outcome

PROTOCOL_VERSION = 0
"""Protocol version in rows of a replay, which were not measured with kernrec's protocol."""

ConfigKey = tuple[str, str]
"""Name of the kernel, and canonical text of the config."""

_one_reader = threading.Lock()
"""Lock that lets only one thread read at a time. If a reader closed its connection, DuckDB would also close the cursors
of other readers."""


@dataclass(frozen=True)
class RecordedConfig:
    """Recorded measurements of one config."""

    config: Mapping[str, int]
    outcome: Outcome
    samples_s: tuple[float, ...] = ()
    """Run times in seconds, from all measurements of the config."""
    power_w: float | None = None
    """Power in watts, or None if it was not recorded."""
    error: str | None = None


@dataclass(frozen=True)
class Recording:
    """Recorded configs of one problem on one GPU."""

    gpu: str
    problem: Problem
    outcomes: Mapping[ConfigKey, RecordedConfig]
    """Recorded measurements, keyed by kernel and config, in the order of the recording."""
    kernel_hashes: Mapping[str, str]
    """Hash of the source with which each kernel was last measured, keyed by kernel name."""

    @staticmethod
    def key(kernel: str, config: Mapping[str, int]) -> ConfigKey:
        """Return the key of a config in `outcomes`."""
        return kernel, canonical_json(dict(config))


def chosen_gpus(path: Path, wanted: str) -> tuple[str, ...]:
    """Return the names of the recorded GPUs that `--gpu` selects: `auto` (the only GPU), `all`, or a name.

    Raise `UsageError` if the database has nothing to replay, `auto` matches several GPUs, or the GPU was not recorded.
    """
    with _one_reader, Database.open(path) as database:
        gpus = tuple(sorted({str(row["gpu"]) for row in database.rows("unretracted_rows") if _replayable(row)}))
    if not gpus:
        raise UsageError(
            f"{path} holds no measurements to replay: none is of a whole GPU at its default limits and clocks"
        )
    if wanted == "auto" and len(gpus) > 1:
        raise UsageError(f"{path} holds measurements of {', '.join(gpus)}: name one with --gpu")
    if wanted in ("auto", "all"):
        return gpus
    chosen = find_gpu(wanted).name
    if chosen not in gpus:
        raise unknown(f"GPU in {path}", chosen, gpus)
    return (chosen,)


def _replayable(row: Mapping[str, Any]) -> bool:
    limits = (row["power_limit_w"], row["locked_sm_clock_hz"], row["locked_memory_clock_hz"])
    default_limits = limits == (None, None, None)
    return default_limits and not row["mig"] and not row["replayed"] and row["outcome"] != Outcome.QUARANTINED


def load_requested(path: Path, gpu: str | None, keys: Collection[str] | None) -> list[Recording]:
    """Return the recordings of the problems with the given keys. If `keys` is None, return the recordings of all
    problems.

    If `gpu` is None, the database must have recordings of only one GPU. Raise `UsageError` if none of the problems was
    recorded.
    """
    recordings = load_recordings(path, gpu)
    requested = [recording for recording in recordings if keys is None or recording.problem.key in keys]
    if not requested:
        examples = ", ".join(recording.problem.key for recording in recordings[:3])
        raise UsageError(f"{path} holds none of the requested problems; it holds {examples}")
    return requested


def load_recordings(path: Path, gpu: str | None) -> list[Recording]:
    """Return the recordings of one GPU, one for each problem. The problem with the most recorded configs comes first.

    If `gpu` is None, the database must have recordings of only one GPU. Raise `UsageError` if the database has nothing
    to replay.
    """
    (chosen,) = chosen_gpus(path, gpu or "auto")
    with _one_reader, Database.open(path) as database:
        rows = [row for row in database.rows("unretracted_rows") if _replayable(row)]
        configs = {str(row["config_id"]): str(row["tunables"]) for row in database.rows("config")}
        problems = {str(row["problem_id"]): str(row["key"]) for row in database.rows("problem")}
        kernels = database.kernels()
    by_problem: dict[str, dict[ConfigKey, list[Mapping[str, Any]]]] = {}
    hashes: dict[str, dict[str, str]] = {}
    mine = [(problems[str(row["problem_id"])], str(row["kernel"]), row) for row in rows if row["gpu"] == chosen]
    for key, kernel, row in sorted(mine, key=lambda item: str(item[2]["measured_at"])):
        hashes.setdefault(key, {})[kernel] = str(row["kernel_hash"])
    for key, kernel, row in mine:
        if hashes[key][kernel] == row["kernel_hash"]:
            by_problem.setdefault(key, {}).setdefault((kernel, configs[str(row["config_id"])]), []).append(row)
    recordings = [
        Recording(
            chosen,
            problem,
            {name: _recorded_config(name, rows_of) for name, rows_of in configs_of.items()},
            hashes[key],
        )
        for key, configs_of in by_problem.items()
        if (problem := _problem(key, kernels)) is not None
    ]
    if not recordings:
        raise UsageError(f"{path} holds measurements of {chosen}, but of no known problem")
    return sorted(recordings, key=lambda recording: -len(recording.outcomes))


def _problem(key: str, kernels: Sequence[tuple[str, str, str, str | None]]) -> Problem | None:
    """Return the problem with a key, or None if neither an op nor the spec of a stored kernel declares it."""
    ops = [
        kernel_from(json.loads(spec), name, code).definition
        for name, spec, code, _ in kernels
        if key.startswith(f"{name}[")
    ]
    for op in (*ops, None):
        with suppress(UsageError):
            return problem_from_key(key, op)
    return None


def _recorded_config(key: ConfigKey, rows: Iterable[Mapping[str, Any]]) -> RecordedConfig:
    config = json.loads(key[1])
    rows = list(rows)
    good = [row for row in rows if row["outcome"] == Outcome.OK]
    if not good:
        return RecordedConfig(config, Outcome(rows[-1]["outcome"]), error=rows[-1]["error"])
    samples = [sample for row in good for sample in (row["latency_samples_s"] or [row["latency_s"]])]
    powers = [row["power_w"] or _power(row) for row in good if row["energy_j"] or row["power_w"]]
    return RecordedConfig(config, Outcome.OK, tuple(samples), float(np.median(powers)) if powers else None)


def _power(row: Mapping[str, Any]) -> float:
    return float(row["energy_j"] / (row["sustained_latency_s"] or row["latency_s"]))


def replay_gpu(recordings: Iterable[Recording], seed: int = 0) -> SimulatedGpu:
    """Return a simulated GPU that replays recordings of one GPU, with run times drawn from the recorded samples."""
    by_problem = {recording.problem.key: recording for recording in recordings}
    first = next(iter(by_problem.values()))
    entry = find_gpu(first.gpu)
    outcomes = (outcome for recording in by_problem.values() for outcome in recording.outcomes.values())
    has_power = any(outcome.power_w is not None for outcome in outcomes)

    def kernel_of(subject: ConfigUnderTest) -> SimulatedKernel:
        key = Recording.key(subject.kernel_name, subject.config)
        recorded = by_problem[subject.problem.key].outcomes.get(key)
        if recorded is None:
            raise MeasurementFailure(Outcome.CONSTRAINT, "this config was not recorded")
        if recorded.outcome != Outcome.OK:
            raise MeasurementFailure(recorded.outcome, recorded.error or "recorded without a reason")
        draw = np.random.default_rng([seed, zlib.crc32(repr((subject.problem.key, key)).encode())])
        samples = np.array(recorded.samples_s)
        footprint = sum(tensor.bytes for tensor in subject.problem.tensors.values())
        return SimulatedKernel(lambda n: draw.choice(samples, n), recorded.power_w, None, footprint)

    info = DeviceInfo(
        gpu=entry.name,
        name=f"replay of {entry.title}",
        sm=entry.sm,
        l2_bytes=entry.l2_bytes,
        memory_bytes=int(entry.memory_bytes),
        generation=entry.generation,
        energy=None if has_power else "the recording has run times only",
        virtual=True,
    )
    return SimulatedGpu(info, kernel_of, SimulatedSensors(sm_clock_hz=None, temperature_c=None), seed)


NAME = "convolution-rtx-a4000"
KERNEL = "convolution"
GPU = "rtx-a4000"
SHAPE: dict[str, Any] = {"n": 1, "c": 1, "h": 4110, "w": 4110, "k": 1, "r": 15, "s": 15}
SOURCE = "AutoTuningAssociation/benchmark_hub, MIT, December 2023"
DESCRIPTION = f"the recorded space that ships: a convolution on an RTX A4000, 4,362 configs ({SOURCE})"


def shipped_file() -> Path:
    """Return the path of the shipped recording, which is a file in the T4 format."""
    return paths.shipped("db/prebuilt") / "replay" / f"{NAME}.t4.json.gz"


def shipped_recording() -> Path:
    """Return the path of a database with the shipped recording, which is created in the cache folder on first use.
    Raise `UsageError` if the database cannot be written to the cache folder."""
    from kernrec.interop.import_results import import_results
    from kernrec.op import find_op
    from kernrec.store import Database

    file = shipped_file()
    path = paths.cache() / "replay" / f"{NAME}.{sha256(file.read_bytes()).hexdigest()[:16]}.duckdb"
    if path.exists():
        return path
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Database.open(temporary, read_only=False, create=True) as database:
            import_results(database, file, find_op("conv2d").problem(**SHAPE), GPU, KERNEL)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{cannot_be('written', path, error)}; name a recording with --replay") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path


def replayed_database() -> Path:
    """Return the default database for rows of a replay, which are kept apart from the user's measurements."""
    return paths.cache() / "replay" / "replayed.duckdb"
