"""What another tuner measured, in our units, and the rows of the database that it becomes.

A row says where it comes from: protocol 0, so that anything measured by kernrec's own protocol goes before it; the
tool in `measured_by`; and a session of its own, named by what the recording began with, so that importing a file again,
or the whole of it after a part, adds nothing twice.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import sqrt
from typing import Any

from kernrec.errors import UsageError
from kernrec.interop.json_document import finite
from kernrec.op import Problem
from kernrec.store import content_hash

UNKNOWN_TIME = datetime(1970, 1, 1)
"""When a result was measured that does not say it."""

MOST_SAMPLES = 100_000
MOST_TUNABLES = 256
MOST_CHARACTERS = 200

_LEAST_W, _MOST_W = 0.1, 5e3  # energy over time outside of this is not in joules, or not of one launch

Scalar = int | float | str | bool


@dataclass(frozen=True)
class ForeignResult:
    """One config as another tuner saw it, in SI units; failures have no latency.

    latency_s: as the tool states it (Kernel Tuner: the mean of its runs). energy_method: the field it came from.
    """

    config: Mapping[str, Scalar]
    outcome: str
    error: str | None = None
    latency_s: float | None = None
    samples_s: tuple[float, ...] = ()
    energy_j: float | None = None
    power_w: float | None = None
    energy_method: str | None = None
    measured_at: datetime = UNKNOWN_TIME
    power_limit_w: float | None = None
    locked_sm_clock_hz: float | None = None
    locked_memory_clock_hz: float | None = None


@dataclass(frozen=True)
class ForeignResults:
    """A file of results. device, kernel: None where it does not say. dropped: incomplete entries at its end."""

    tool: str
    device: str | None
    kernel: str | None
    tunables: tuple[str, ...]
    results: list[ForeignResult] = field(repr=False)
    dropped: int = 0


def external_hash(kernel: str, tunables: Iterable[str], tool: str) -> str:
    """The `kernel_hash` of a kernel whose source we do not have: of its name, its tunables' names and the tool.

    It begins with `external:`; hashes of the library are hexadecimal digits alone, so none can be taken for the other.
    """
    return "external:" + content_hash({"kernel": kernel, "tunables": sorted(tunables), "tool": tool})


def measurement_rows(file: ForeignResults, gpu: str, problem: Problem, kernel: str) -> Iterator[dict[str, Any]]:
    """Rows for `Database.add_measurements`, one for each result. gpu: the catalog's name of the card."""
    first = file.results[0]
    began = {
        "device": file.device,
        "kernel": kernel,
        "problem": problem.key,
        "tunables": sorted(file.tunables),
        "config": dict(first.config),
        "at": first.measured_at.isoformat(),
    }
    every = {
        "gpu": gpu,
        "device": file.device,
        "kernel": kernel,
        "kernel_hash": external_hash(kernel, file.tunables, file.tool),
        "problem": problem,
        "protocol_version": 0,
        "tier": "final",
        "session": f"{file.tool} {content_hash(began)}",
        "measured_by": file.tool,
    }
    for result in file.results:
        yield every | {
            "config": dict(result.config),
            "outcome": result.outcome,
            "error": result.error,
            "measured_at": result.measured_at,
            "power_limit_w": result.power_limit_w,
            "locked_sm_clock_hz": result.locked_sm_clock_hz,
            "locked_memory_clock_hz": result.locked_memory_clock_hz,
            "energy_j": result.energy_j,
            "power_w": result.power_w,
            "energy_method": result.energy_method,
            **_latency(result),
        }


def _latency(result: ForeignResult) -> dict[str, Any]:
    """The latency columns: the stated latency, and what its samples say of it."""
    value, samples = result.latency_s, result.samples_s
    if value is None:
        return {}
    columns: dict[str, Any] = {"latency_s": value}
    if samples:
        middle = statistics.median(samples)
        mad = statistics.median(abs(sample - middle) for sample in samples)
        columns |= {"latency_samples_s": list(samples), "latency_n": len(samples), "latency_mad_s": mad}
        columns["latency_outliers"] = sum(abs(sample - middle) > 5 * mad for sample in samples)
    if len(samples) > 1:
        deciles = statistics.quantiles(samples, n=10, method="inclusive")
        columns |= {"latency_q10_s": deciles[0], "latency_q90_s": deciles[-1]}
        # The stated value is a mean: 90 % of means lie within 1.645 standard errors.
        half = 1.645 * statistics.stdev(samples) / sqrt(len(samples))
        columns |= {"latency_low_s": max(value - half, value * 1e-3), "latency_high_s": value + half}
    return columns


def config_of(given: Mapping[str, object]) -> dict[str, Scalar]:
    """A config with values that can be stored; raises `ValueError` for any other."""
    if not given or len(given) > MOST_TUNABLES:
        raise ValueError(f"it has {len(given)} tunables; 1 to {MOST_TUNABLES} are accepted")
    config: dict[str, Scalar] = {}
    for name, value in given.items():
        text_of(name, "the name of a tunable")
        if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**63):
            value = finite(value, f"tunable {name}")
        config[name] = value if isinstance(value, (int, float)) else text_of(value, f"tunable {name}")
    return config


def text_of(value: object, what: str) -> str:
    """`value` as text that can be shown on one line; raises `ValueError` naming what it was to be."""
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARACTERS or not value.isprintable():
        raise ValueError(f"{what} is {value!r:.40}; printable text of at most {MOST_CHARACTERS} characters is expected")
    return value


def name_of(header: Mapping[str, object], member: str) -> str | None:
    """A name that a file may state."""
    value = header.get(member)
    return None if value is None else text_of(value, member)


# Kernel Tuner sets the card's limits as if they were tunables: https://kerneltuner.github.io, observers, NVMLObserver.
LIMITS = {
    "nvml_pwr_limit": "power_limit_w",
    "nvml_gr_clock": "locked_sm_clock_hz",
    "nvml_mem_clock": "locked_memory_clock_hz",
}
LIMIT_UNIT = {"nvml_pwr_limit": 1.0, "nvml_gr_clock": 1e6, "nvml_mem_clock": 1e6}


def split_limits(config: Mapping[str, Scalar]) -> tuple[dict[str, Scalar], dict[str, Any]]:
    """(the config without what limits the card, those limits as fields of a `ForeignResult`)."""
    limits = {}
    for name, column in LIMITS.items():
        if name in config:
            limits[column] = finite(config[name], name) * LIMIT_UNIT[name]
            if limits[column] <= 0:
                raise ValueError(f"{name} is {config[name]}; a positive number is expected")
    return {name: value for name, value in config.items() if name not in LIMITS}, limits


def time_of(value: object) -> datetime:
    """A time stamp in UTC, without its zone; `UNKNOWN_TIME` for None."""
    if value is None:
        return UNKNOWN_TIME
    try:
        time = datetime.fromisoformat(value if isinstance(value, str) else "")
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError):
        raise ValueError(f"timestamp is {value!r:.40}; one such as 2024-05-01 12:00:00 is expected") from None


def latency_of(value: object, unit_s: float) -> float:
    """A time in seconds that a launch can take."""
    seconds = finite(value, "time") * unit_s
    if not 0 < seconds < 1e6:
        raise ValueError(f"time is {seconds:g} s; more than 0 and less than 1e6 is expected")
    return seconds


def samples_of(values: object, unit_s: float) -> tuple[float, ...]:
    """Run times in seconds."""
    if not isinstance(values, list) or len(values) > MOST_SAMPLES:
        raise ValueError(f"run times are not a list of at most {MOST_SAMPLES} numbers")
    return tuple(latency_of(value, unit_s) for value in values)


# Where energy comes from, best first, with the power that belongs to it; joules of one launch, and watts.
ENERGIES = (
    ("ps_energy", "ps_power"),  # PowerSensor, an external meter
    ("powersensor2_energy", "powersensor2_power"),  # the same by way of PMT
    ("powersensor3_energy", "powersensor3_power"),
    ("nvml_energy", "nvml_power"),  # median of sampled power x time
    ("nvidia_energy", "nvidia_power"),  # NVML by way of PMT
    ("tegra_energy", "tegra_power"),
    ("energy", "power"),
)


def energy_of(joules: Mapping[str, float], watts: Mapping[str, float], latency_s: float) -> dict[str, Any]:
    """The energy fields of a `ForeignResult` from named joules and watts; empty if implausible for one launch."""
    for energy_name, power_name in ENERGIES:
        energy, power, method = joules.get(energy_name), watts.get(power_name), energy_name
        if energy is None and power is not None:
            energy, method = power * latency_s, f"{power_name} x time"
        if energy is None:
            continue
        if not _LEAST_W <= energy / latency_s <= _MOST_W:
            continue
        if power is None or not _LEAST_W <= power <= _MOST_W:
            power = energy / latency_s
        return {"energy_j": energy, "power_w": power, "energy_method": method}
    return {}


def require(results: list[ForeignResult], path: object) -> None:
    """Raises `UsageError` where there are none."""
    if not results:
        raise UsageError(f"{path} holds no results")
