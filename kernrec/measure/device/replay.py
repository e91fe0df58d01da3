"""A device whose answers were recorded: run times with their noise, power where it was measured, and every failure.

What it is for: search, collection and comparison with other tuners without a GPU. What it answers was measured
elsewhere, and rows made with it say so (`protocol_version` 0, `measured_by` replay).
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.gpu import find_gpu
from kernrec.kernel.spec_reader import kernel_from
from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo, MeasurementFailure
from kernrec.measure.device.simulated import SimulatedCard, SimulatedKernel, SimulatedSensors
from kernrec.op import Problem, problem_from_key
from kernrec.store import Database, canonical_json

PROTOCOL_VERSION = 0
"""Of rows that a replay makes: nothing was measured by a protocol of ours when they came about."""

ConfigKey = tuple[str, str]
"""Kernel and canonical text of the config."""


@dataclass(frozen=True)
class RecordedConfig:
    """What was recorded of one config. samples_s: run times of all its rows; power_w: None where nobody measured it."""

    config: Mapping[str, int]
    outcome: str
    samples_s: tuple[float, ...] = ()
    power_w: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Recording:
    """The recorded space of one problem on one GPU: outcomes by kernel and config, in the order they were recorded.

    Of a kernel that was measured with several sources it is the one that was measured last: `kernel_hashes` names it.
    """

    gpu: str
    problem: Problem
    outcomes: Mapping[ConfigKey, RecordedConfig]
    kernel_hashes: Mapping[str, str]

    @property
    def best(self) -> RecordedConfig:
        """The config with the least median run time."""
        good = [outcome for outcome in self.outcomes.values() if outcome.outcome == "ok"]
        return min(good, key=lambda outcome: float(np.median(outcome.samples_s)))

    @property
    def has_power(self) -> bool:
        """Whether power was recorded for any config."""
        return any(outcome.power_w is not None for outcome in self.outcomes.values())

    @staticmethod
    def key(kernel: str, config: Mapping[str, int]) -> ConfigKey:
        """What `outcomes` has a config under."""
        return kernel, canonical_json(dict(config))


def recorded_gpus(path: Path) -> tuple[str, ...]:
    """The GPUs that a database holds measurements of."""
    with Database.open(path) as database:
        return tuple(sorted({str(row["gpu"]) for row in database.rows("measurement") if _replayable(row)}))


def _replayable(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a whole card as it comes, and no replay itself: a replay tells no limits or clocks."""
    limits = (row["power_limit_w"], row["locked_sm_clock_hz"], row["locked_memory_clock_hz"])
    replayed = str(row["measured_by"] or "").endswith(" replay")
    return limits == (None, None, None) and not row["mig"] and not replayed and row["outcome"] != "quarantined"


def load_recordings(path: Path, gpu: str | None, op: str | None = None) -> list[Recording]:
    """The recorded problems of one GPU in a database, most configs first.

    gpu: may be left out where the database holds one only. Raises `UsageError` where there is nothing to replay.
    """
    with Database.open(path) as database:
        rows = [row for row in database.rows("measurement") if _replayable(row)]
        configs = {str(row["config_id"]): str(row["tunables"]) for row in database.rows("config")}
        problems = {str(row["problem_id"]): str(row["key"]) for row in database.rows("problem")}
        kernels = database.kernels()
    gpus = sorted({str(row["gpu"]) for row in rows})
    if not gpus:
        raise UsageError(f"{path} holds no measurements to replay: none of a whole card at its own limits and clocks")
    if gpu is None and len(gpus) > 1:
        raise UsageError(f"{path} holds measurements of {', '.join(gpus)}: name one with --gpu")
    chosen = gpu or gpus[0]
    if chosen not in gpus:
        raise unknown(f"GPU in {path}", chosen, gpus)
    by_problem: dict[str, dict[ConfigKey, list[Mapping[str, Any]]]] = {}
    hashes: dict[str, dict[str, str]] = {}
    mine = [(problems[str(row["problem_id"])], str(row["kernel"]), row) for row in rows if row["gpu"] == chosen]
    for key, kernel, row in sorted(mine, key=lambda of: str(of[2]["measured_at"])):
        hashes.setdefault(key, {})[kernel] = str(row["kernel_hash"])
    for key, kernel, row in mine:
        if (op is None or key.startswith(f"{op}[")) and hashes[key][kernel] == row["kernel_hash"]:
            by_problem.setdefault(key, {}).setdefault((kernel, configs[str(row["config_id"])]), []).append(row)
    recordings = [
        Recording(chosen, problem, {name: _outcome(name, of) for name, of in found.items()}, hashes[key])
        for key, found in by_problem.items()
        if (problem := _problem(key, kernels)) is not None
    ]
    if not recordings:
        raise UsageError(f"{path} holds measurements of {chosen}, but of no problem that is known here")
    return sorted(recordings, key=lambda recording: -len(recording.outcomes))


def _problem(key: str, kernels: Sequence[tuple[str, str, str]]) -> Problem | None:
    """The problem of a key: declared by one of these kernels (name, spec, source), or of an op; None of neither."""
    ops = [
        kernel_from(json.loads(spec), name, code).definition
        for name, spec, code in kernels
        if key.startswith(f"{name}[")
    ]
    for own in (*ops, None):
        with suppress(UsageError):
            return problem_from_key(key, own)
    return None


def _outcome(key: ConfigKey, rows: Iterable[Mapping[str, Any]]) -> RecordedConfig:
    config = json.loads(key[1])
    rows = list(rows)
    good = [row for row in rows if row["outcome"] == "ok"]
    if not good:
        return RecordedConfig(config, rows[-1]["outcome"], error=rows[-1]["error"])
    samples = [s for row in good for s in (row["latency_samples_s"] or [row["latency_s"]])]
    powers = [row["power_w"] or _power(row) for row in good if row["energy_j"] or row["power_w"]]
    return RecordedConfig(config, "ok", tuple(samples), float(np.median(powers)) if powers else None)


def _power(row: Mapping[str, Any]) -> float:
    return float(row["energy_j"] / (row["sustained_latency_s"] or row["latency_s"]))


def replay_card(
    recordings: Iterable[Recording], seed: int = 0, sensors: SimulatedSensors | None = None
) -> SimulatedCard:
    """A device that answers from recordings of one GPU; run times are drawn from those recorded, by `seed`."""
    by_problem = {recording.problem.key: recording for recording in recordings}
    first = next(iter(by_problem.values()))
    card = find_gpu(first.gpu)
    has_power = any(recording.has_power for recording in by_problem.values())

    def kernel_of(subject: ConfigUnderTest) -> SimulatedKernel:
        key = Recording.key(subject.kernel_name, subject.config)
        outcome = by_problem[subject.problem.key].outcomes.get(key)
        if outcome is None:
            raise MeasurementFailure("constraint", "this config was not recorded")
        if outcome.outcome != "ok":
            raise MeasurementFailure(outcome.outcome, outcome.error or "recorded without a reason")
        draw = np.random.default_rng([seed, zlib.crc32(repr((subject.problem.key, key)).encode())])
        samples = np.array(outcome.samples_s)
        footprint = sum(tensor.bytes for tensor in subject.problem.tensors.values())
        return SimulatedKernel(lambda n: draw.choice(samples, n), outcome.power_w, None, footprint)

    facts = DeviceInfo(
        gpu=card.name,
        name=f"replay of {card.title}",
        sm=card.sm,
        l2_bytes=card.l2_bytes,
        memory_bytes=int(card.memory_bytes),
        generation=card.generation,
        energy=None if has_power else "the recording holds run times alone",
        virtual=True,
    )
    return SimulatedCard(facts, kernel_of, sensors or SimulatedSensors(sm_clock_hz=None, temperature_c=None), seed=seed)
