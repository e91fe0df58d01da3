"""Replay recorded measurements as a device: run times with their noise, power if it was measured, and failures.

kernrec ships one recording: all configs of Kernel Tuner's 2-D convolution (f32, 15 x 15 filter, 4096 x 4096 outputs) on
an RTX A4000. The source of this kernel is not shipped, so its configs have no profiles. kernrec can replay the configs
and search among them, but it cannot predict or explain their costs.
"""

import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
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
from kernrec.store.schema import with_derived

PROTOCOL_VERSION = 0
"""Protocol version in rows of a replay."""

ConfigKey = tuple[str, str]
"""Name of the kernel, and canonical text of the config."""

_one_reader = threading.Lock()
"""Lock that lets only one thread read at a time. When DuckDB closes a connection, other threads lose their cursors."""


_REPLAYABLE = (
    "coalesce(power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz) IS NULL AND mig IS DISTINCT FROM true"
    " AND replayed IS DISTINCT FROM true AND outcome <> 'quarantined'"
)
"""SQL condition on the measurements that a replay can repeat."""
_RECORDED = f"""
    SELECT key, kernel, kernel_hash, tunables,
           last(outcome ORDER BY measurement_id), last(error ORDER BY measurement_id),
           flatten(list(coalesce(latency_samples_s, [latency_s]) ORDER BY measurement_id) FILTER (outcome = 'ok')),
           median(coalesce(power_w, energy_j / coalesce(sustained_latency_s, latency_s))) FILTER (outcome = 'ok')
    FROM (
        FROM unretracted_rows WHERE gpu = ? AND {_REPLAYABLE}
        QUALIFY kernel_hash = last_value(kernel_hash) OVER (
            PARTITION BY problem_id, kernel ORDER BY measured_at, measurement_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
    ) JOIN (SELECT config_id, tunables FROM db.config) USING (config_id)
    JOIN (SELECT problem_id, key FROM db.problem) USING (problem_id)
    GROUP BY ALL ORDER BY min(measurement_id)
"""
"""SQL query for the recorded configs of a GPU, with only the measurements of each kernel's newest source."""


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
    """Hash of each kernel's newest measured source, keyed by kernel name."""

    @staticmethod
    def key(kernel: str, config: Mapping[str, int]) -> ConfigKey:
        """Return the key of a config in `outcomes`."""
        return kernel, canonical_json(dict(config))


def chosen_gpus(path: Path, wanted: str) -> tuple[str, ...]:
    """Return the names of the recorded GPUs that `--gpu` selects: `auto` (the only GPU), `all`, or a name.

    Raise `UsageError` if the database has nothing to replay, `auto` matches several GPUs, or the GPU was not
    recorded.
    """
    query = f"SELECT DISTINCT gpu FROM unretracted_rows WHERE {_REPLAYABLE} ORDER BY 1"
    with _one_reader, Database.open(path) as database:
        gpus = tuple(gpu for (gpu,) in database.query(with_derived("unretracted_rows", query)))
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


def load_recordings(path: Path, gpu: str | None) -> list[Recording]:
    """Return the recordings of one GPU, one for each problem. The problem with the most recorded configs comes first.

    If `gpu` is None, the database must have recordings of only one GPU. Raise `UsageError` if there is nothing to
    replay.
    """
    (chosen,) = chosen_gpus(path, gpu or "auto")
    with _one_reader, Database.open(path) as database:
        rows = database.query(with_derived("unretracted_rows", _RECORDED), [chosen])
        kernels = database.kernels()
    outcomes: dict[str, dict[ConfigKey, RecordedConfig]] = {}
    hashes: dict[str, dict[str, str]] = {}
    for key, kernel, kernel_hash, tunables, outcome, error, samples_s, power_w in rows:
        hashes.setdefault(key, {})[kernel] = kernel_hash
        recorded = RecordedConfig(json.loads(tunables), Outcome(outcome), error=error)
        if samples_s:
            recorded = RecordedConfig(recorded.config, Outcome.OK, tuple(samples_s), power_w)
        outcomes.setdefault(key, {})[kernel, tunables] = recorded
    recordings = [
        Recording(chosen, problem, outcomes_of, hashes[key])
        for key, outcomes_of in outcomes.items()
        if (problem := _problem(key, kernels)) is not None
    ]
    if not recordings:
        raise UsageError(f"{path} holds measurements of {chosen}, but of no known problem")
    return sorted(recordings, key=lambda recording: -len(recording.outcomes))


def _problem(key: str, kernels: Sequence[tuple[str, str, str, str | None]]) -> Problem | None:
    """Parse a problem's key. Return None if neither an op nor a stored kernel declares the problem."""
    ops = [
        kernel_from(json.loads(spec), name, code).definition
        for name, spec, code, _ in kernels
        if key.startswith(f"{name}[")
    ]
    for op in (*ops, None):
        with suppress(UsageError):
            return problem_from_key(key, op)
    return None


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
        memory_bytes=int(entry.usable_bytes),
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
    """Return the path of the shipped recording. The file has the T4 format for results of auto-tuners."""
    return paths.shipped("db/prebuilt") / "replay" / f"{NAME}.t4.json.gz"


def shipped_recording() -> Path:
    """Return the path of a database with the shipped recording. The first call creates the database in the cache
    folder."""
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
    """Return the path of the default database for replayed measurements."""
    return paths.cache() / "replay" / "replayed.duckdb"
