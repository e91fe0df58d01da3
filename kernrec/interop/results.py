"""Represent results of another tool in SI units, and convert them to measurements.

kernrec's own measurements take precedence over imported ones. Importing a file again adds no duplicates, even if the
file has grown.
"""

import re
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
from kernrec.store.measurement import Measurement, Outcome, Tier
from kernrec.util.human import human
from kernrec.util.normal import DEVIATIONS

EXTERNAL = "external:"
"""Prefix of the `kernel_hash` of a kernel whose source is unknown."""

UNKNOWN_TIME = datetime(1970, 1, 1)
"""Placeholder for the time of a result without a timestamp."""

MOST_SAMPLES = 100_000
MOST_TUNABLES = 256
MOST_CHARACTERS = 200

# Plausible power of a GPU. A file with less or more power uses another unit, or adds up several launches.
_LEAST_W, _MOST_W = 0.1, 5e3

Scalar = int | float | str | bool


@dataclass(frozen=True)
class StatedProblem:
    """Possibly incomplete description of the measured problem. Unknown parts are None or empty."""

    op: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    dtype: str | None = None
    layout: str | None = None

    @classmethod
    def of(cls, problem: Problem) -> "StatedProblem":
        return cls(problem.op, problem.dims, problem.dtype, problem.layout)


@dataclass(frozen=True)
class MappedColumn:
    """Column of a table whose name or unit differs from kernrec's: the option `--map NAME=COLUMN*FACTOR`."""

    name: str
    """Name that kernrec expects: a tunable, or a quantity with its unit, such as `latency_s`."""
    column: str
    factor: float | None = None
    """Factor to multiply each value by, or None to keep the values unchanged."""

    @classmethod
    def parse(cls, text: str) -> "MappedColumn":
        """Parse a mapping such as `latency_s=time (ms)*1e-3` or `block_x=bx`. Raise `UsageError` for any other text."""
        name, equals, column = (part.strip() for part in text.partition("="))
        if match := re.fullmatch(r"(.+?)\s*([*/])\s*([\d.]+(?:[eE][+-]?\d+)?)", column):
            factor = float(match[3])
            if factor > 0:
                return cls(name, match[1], factor if match[2] == "*" else 1.0 / factor)
        if not (name and equals and column):
            raise UsageError(
                f"--map {text!r:.60}: expected NAME=COLUMN or NAME=COLUMN*FACTOR, such as latency_s=time*1e-3"
            )
        return cls(name, column)


@dataclass(frozen=True)
class ReadOptions:
    """Information that a file of results lacks."""

    names: tuple[str, ...] = ()
    """Names of the tunables and fixed macros in the spec. Empty if there is no spec."""
    mapped: "tuple[MappedColumn, ...]" = ()
    ignored: tuple[str, ...] = ()
    """Columns of a table that are not tunables."""
    kernels: tuple[str, ...] = ()
    """Possible names of the kernel to read. Empty if the kernel is unknown."""


@dataclass(frozen=True)
class ForeignResult:
    """Result of another tool for one config, in SI units.

    The fields are columns of the table `measurement`, except those in `_NO_COLUMNS`.
    """

    config: Mapping[str, Scalar]
    outcome: Outcome
    error: str | None = None
    latency_s: float | None = None
    """Latency in seconds, or None if the config failed."""
    samples_s: tuple[float, ...] = ()
    """Times of single runs in seconds."""
    energy_j: float | None = None
    power_w: float | None = None
    energy_method: str | None = None
    """Name of the file's field that contains the energy."""
    measured_at: datetime = UNKNOWN_TIME
    power_limit_w: float | None = None
    locked_sm_clock_hz: float | None = None
    locked_memory_clock_hz: float | None = None
    registers: int | None = None
    """Registers per thread of the measured code, or None if the tool does not report them."""
    smem_bytes: int | None = None
    """Static and dynamic shared memory per block in bytes, or None if the tool does not report it."""
    kernel: str | None = None
    """Name of the kernel, or None if the file does not name it per result."""
    sm_clock_hz: float | None = None
    """SM clock during the run in Hz, or None if the tool does not report it."""
    launch: tuple[tuple[int, ...], tuple[int, ...], float | None] | None = None
    """Grid, block and dynamic shared memory (bytes or None) of a launch, or None if the tool records tunables."""


_NO_COLUMNS = ("samples_s", "kernel", "sm_clock_hz", "launch")


@dataclass(frozen=True)
class ForeignResults:
    """Results in a file, with information about the whole file."""

    tool: str
    device: str | None
    """Name of the GPU, or None if the file does not state it."""
    kernel: str | None
    """Name of the measured kernel, or None if the file does not state a name."""
    results: list[ForeignResult] = field(repr=False)
    problem: StatedProblem = StatedProblem()
    """Measured problem, as far as the file states it."""
    dropped: int = 0
    """Number of incomplete entries at the end of a truncated file."""
    not_run: int = 0
    """Number of configs that the file lists without a result."""
    notes: tuple[str, ...] = ()

    @property
    def tunables(self) -> tuple[str, ...]:
        return tuple(self.results[0].config) if self.results else ()


def external_hash(kernel: str, tunables: Iterable[str], tool: str) -> str:
    """Return a hash for a kernel whose source is unknown."""
    return EXTERNAL + content_hash({"kernel": kernel, "tunables": sorted(tunables), "tool": tool})


def to_measurements(
    file: ForeignResults, problem: Problem, gpu: str, kernel: str, kernel_hash: str | None = None, recorder: str = ""
) -> Iterator[Measurement]:
    """Convert the results of one kernel to measurements.

    Args:
        gpu: Name of the GPU in the GPU catalog.
        kernel_hash: Hash of the kernel, or None if its source is unknown.
        recorder: Source of the measurements in addition to the tool, such as a person or a paper.
    """
    first = file.results[0]
    first_result = {
        "device": file.device,
        "kernel": kernel,
        "problem": problem.key,
        "tunables": sorted(file.tunables),
        "config": dict(first.config),
        "at": first.measured_at.isoformat(),
    }
    common = {
        "gpu": gpu,
        "kernel": kernel,
        "kernel_hash": kernel_hash or external_hash(kernel, file.tunables, file.tool),
        "problem": problem,
        "protocol_version": 0,
        "tier": Tier.FINAL,
        "session": f"{file.tool} {content_hash(first_result)}",
        "measured_by": f"{file.tool}, {recorder}" if recorder else file.tool,
        "device": file.device,
    }
    for result in file.results:
        columns = {name: value for name, value in vars(result).items() if name not in _NO_COLUMNS}
        yield Measurement.from_columns(columns | _statistics(result) | common)


def _statistics(result: ForeignResult) -> dict[str, Any]:
    """Return a result's statistics as columns. Raise `UsageError` if its samples contradict its latency."""
    value, samples = result.latency_s, result.samples_s
    if value is None or not samples:
        return {}
    if not min(samples) * 0.999 <= value <= max(samples) * 1.001:
        raise UsageError(
            f"a latency of {human(value, 's')} contradicts its samples, which are {human(min(samples), 's')} to"
            f" {human(max(samples), 's')}"
        )
    middle = statistics.median(samples)
    mad = statistics.median(abs(sample - middle) for sample in samples)
    columns = {
        "latency_samples_s": samples,
        "latency_n": len(samples),
        "latency_mad_s": mad,
        "latency_outliers": sum(abs(sample - middle) > 5 * mad for sample in samples),
    }
    if len(samples) == 1:
        return columns
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    half = DEVIATIONS * statistics.stdev(samples) / sqrt(len(samples))
    ends = {"latency_low_s": max(value - half, value * 1e-3), "latency_high_s": value + half}
    return columns | ends | {"latency_q10_s": deciles[0], "latency_q90_s": deciles[-1]}


def config_of(tunables: Mapping[str, object]) -> dict[str, Scalar]:
    """Return the tunables as a config. Raise `ValueError` if the database cannot store it."""
    if not tunables or len(tunables) > MOST_TUNABLES:
        raise ValueError(f"it has {len(tunables)} tunables; 1 to {MOST_TUNABLES} are accepted")
    config: dict[str, Scalar] = {}
    for name, value in tunables.items():
        text_of(name, "the name of a tunable")
        if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**63):
            value = finite(value, f"tunable {name}")
        config[name] = value if isinstance(value, (int, float)) else text_of(value, f"tunable {name}")
    return config


def text_of(value: object, what: str) -> str:
    """Return `value`. Raise `ValueError` unless it is a short, printable line of text."""
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARACTERS or not value.isprintable():
        raise ValueError(f"{what} is {value!r:.40}; expected printable text of at most {MOST_CHARACTERS} characters")
    return value


def name_of(header: Mapping[str, object], member: str) -> str | None:
    """Return the name that a file's header states under the key `member`, or None if there is no name."""
    value = header.get(member)
    return None if value in (None, "") else text_of(value, member)


# Kernel Tuner treats the GPU's limits like tunables (NVMLObserver, https://kerneltuner.github.io).
_LIMITS = {
    "nvml_pwr_limit": ("power_limit_w", 1.0),
    "nvml_gr_clock": ("locked_sm_clock_hz", 1e6),
    "nvml_mem_clock": ("locked_memory_clock_hz", 1e6),
}
"""(field of `ForeignResult`, factor to the SI unit) for each of Kernel Tuner's power and clock limits."""


def split_limits(config: Mapping[str, Scalar]) -> tuple[dict[str, Scalar], dict[str, Any]]:
    """Split a config into (tunables, power and clock limits in SI units, keyed by field of `ForeignResult`)."""
    limits = {}
    for name, (column, factor) in _LIMITS.items():
        if name in config:
            limits[column] = finite(config[name], name) * factor
            if limits[column] <= 0:
                raise ValueError(f"{name} is {config[name]}; expected a positive number")
    return {name: value for name, value in config.items() if name not in _LIMITS}, limits


_UTC = "%Y-%m-%d %H:%M:%S UTC"


def time_of(value: object) -> datetime:
    """Parse a timestamp, and convert it to UTC without a time zone. Return `UNKNOWN_TIME` for None."""
    if value is None:
        return UNKNOWN_TIME
    try:
        text = value if isinstance(value, str) else ""
        # KTT writes seconds with a single digit, which fromisoformat rejects.
        time = datetime.strptime(text, _UTC) if text.endswith(" UTC") else datetime.fromisoformat(text)
        return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError):
        raise ValueError(f"timestamp is {value!r:.40}; expected a time such as 2024-05-01 12:00:00") from None


def latency_of(value: object, unit_s: float) -> float:
    """Convert the time of a launch to seconds. `unit_s` is the length of the value's unit in seconds.

    Raise `ValueError` if the value is not a number, not positive, or too large.
    """
    seconds = finite(value, "time") * unit_s
    if not 0 < seconds < 1e6:
        raise ValueError(f"time is {seconds:g} s; expected more than 0 and less than 1e6")
    return seconds


def samples_of(values: object, unit_s: float) -> tuple[float, ...]:
    """Convert a list of run times to seconds."""
    if not isinstance(values, list) or len(values) > MOST_SAMPLES:
        raise ValueError(f"run times are not a list of at most {MOST_SAMPLES} numbers")
    return tuple(latency_of(value, unit_s) for value in values)


# Pairs of fields from the same sensor, best sensor first: energy of a launch in joules, and power in watts
ENERGIES = (
    ("ps_energy", "ps_power"),  # PowerSensor, an external power meter
    ("powersensor2_energy", "powersensor2_power"),  # PowerSensor 2, read by the library PMT
    ("powersensor3_energy", "powersensor3_power"),
    ("nvml_energy", "nvml_power"),  # NVML: median of sampled power times time
    ("nvidia_energy", "nvidia_power"),  # NVML, read by the library PMT
    ("tegra_energy", "tegra_power"),
    ("energy", "power"),
)


def ran(
    config: Mapping[str, Scalar],
    latency_s: float,
    values: Mapping[str, object],
    samples_s: tuple[float, ...] = (),
    **fields: Any,
) -> ForeignResult:
    """Return a `ForeignResult` for a config that ran.

    Args:
        values: Energies in joules, powers in watts, registers, and shared memory in bytes, keyed by the names in
            `ENERGIES`, `REGISTERS` and `SHARED_BYTES`. Other names are ignored.

    Raises:
        ValueError: A value is not a number, or the number of registers or bytes is impossible.
    """
    energy = _energy_of(values, latency_s)
    return ForeignResult(config, Outcome.OK, None, latency_s, samples_s, **fields, **energy, **_code_of(values))


def _energy_of(values: Mapping[str, object], latency_s: float) -> dict[str, Any]:
    """Return the energy of a launch, or an empty dictionary if no value is plausible."""
    quantities = {name: finite(values[name], name) for pair in ENERGIES for name in pair if name in values}
    for energy_name, power_name in ENERGIES:
        energy, power, method = quantities.get(energy_name), quantities.get(power_name), energy_name
        if energy is None and power is not None:
            energy, method = power * latency_s, f"{power_name} x time"
        if energy is None or not _LEAST_W <= energy / latency_s <= _MOST_W:
            continue
        if power is None or not _LEAST_W <= power <= _MOST_W:
            power = energy / latency_s
        return {"energy_j": energy, "power_w": power, "energy_method": method}
    return {}


# Names that tools use for registers and shared memory of the compiled code.
REGISTERS = ("registers", "num_regs", "registers_per_thread")
SHARED_BYTES = ("smem_bytes", "shared_bytes", "shared_memory_bytes")


def _code_of(values: Mapping[str, object]) -> dict[str, Any]:
    """Return registers and shared memory. Raise `ValueError` for an impossible value."""
    code: dict[str, Any] = {}
    for column, names, most in (("registers", REGISTERS, 255), ("smem_bytes", SHARED_BYTES, 1 << 20)):
        for name in names:
            if (value := values.get(name)) is not None:
                number = finite(value, name)
                if not (0 <= number <= most and number.is_integer()):
                    raise ValueError(f"{name} is {number:g}; expected a whole number from 0 to {most}")
                code[column] = int(number)
                break
    return code
