"""Analytical model of power: the energy of a launch's events, and the clock at which the launch meets a power limit.

The power of a running GPU has four parts:
- board, independent of the core clock: host link and controllers (constant), fans and regulators (proportional to the
  TDP), links between modules, and the idle power of the memory devices.
- leakage, proportional to a power of the core voltage.
- core: the energy of the clock tree in every cycle, and an energy per event (instruction, shared-memory wavefront, L2
  sector, ...). Both energies are proportional to the square of the core voltage.
- DRAM: an energy per byte, which depends on the memory type but not on the core's clock and voltage.

Below a knee frequency, the core voltage is constant on most boards. On Blackwell GPUs, laptops and boards without a
power cable, the voltage rises slowly below the knee, because the minimum voltage is lower. Above the knee, the voltage
rises more and more steeply with the clock (`VoltageCurve`; Schoonhoven et al., "Going green", PMBS 2022, arXiv
2211.07260, use a linear form).

A GPU runs at its highest clock, which on GeForce GPUs is above the data sheet's boost clock. It lowers the clock if the
mean power of a launch would exceed the power limit. If even the lowest clock exceeds the limit, the model inserts
pauses until the mean power equals the limit, as GPUs do under a hardware slowdown.

`power.toml` contains the coefficients and their sources.
"""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.microarchitecture import CLOCKS, OVERLAP
from kernrec.util.cache import shipped_toml
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class VoltageCurve:
    """Core voltage as a function of the clock: nearly constant below a knee, and increasingly steep above the knee."""

    knee_hz: float
    steepness: float
    """Coefficient of the quadratic term above the knee (see `over_knee`)."""
    slope: float = 1.0
    """Coefficient of the linear term above the knee."""
    rise: float = 0.0
    """Relative rise of the voltage from clock 0 to the knee."""

    def over_knee(self, clock_hz: ArrayLike) -> Floats:
        """Return the core voltage at a clock, as a fraction of the voltage at the knee."""
        ratio = np.multiply(clock_hz, 1.0 / self.knee_hz)
        above = np.maximum(ratio - 1.0, 0.0)
        below = np.maximum(1.0 - ratio, 0.0)
        return 1.0 + self.slope * above + self.steepness * above * above - self.rise * below


def clocks_between(lowest: float, highest: float) -> Floats:
    """Return `CLOCKS` equidistant values from `lowest` on. The next value would be `highest`."""
    values, width = np.array([lowest]), highest - lowest
    while len(values) < CLOCKS:
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values


DRAM = "dram.bytes"
"""Event: one byte moves between L2 and DRAM."""
ISSUE = "issue."
"""Prefix of the names of warp instruction events, as in `issue.alu`."""
RANDOM, ZEROS = "random", "zeros"
INPUTS = (RANDOM, ZEROS)
"""Kinds of input data: random numbers or zeros. Zeros also stand for other constants, which toggle few bits."""
_MOST_CACHED = 16
PARTNER_HEADROOM = 1.35
"""Assumed ratio of the highest power limit to the TDP on partners' GeForce boards. An RTX 3090 (350 W) was recorded at
450 W (matmul_tf32_limits_rtx3090.csv). RTX 4090s (450 W) accept 600 W."""

SLOT_W = 75.0
"""Maximum power in watts of a PCI Express slot (PCI Express CEM specification)."""

_DESKTOP = ("GeForce", "RTX", "Quadro", "TITAN")
"""Words in the titles of GPUs whose clocks can be set above the data sheet's boost clock."""


@dataclass(frozen=True)
class PowerModel:
    """Power model of one GPU. "Nominal" means at the data sheet's boost clock and the voltage for this clock."""

    title: str
    memory: str
    boost_hz: float
    running_hz: float
    """Clock in hertz without a power limit. On desktop GeForce GPUs, it is above the data sheet's boost clock."""
    minimum_hz: float
    maximum_hz: float
    curve: VoltageCurve
    volts: float
    """Nominal core voltage, as a fraction of the voltage at the knee of `curve`."""
    board_w: float
    """Constant power in watts of the board, its links, and idle memory."""
    links_w: float
    """Part of `board_w` for links to other modules. The links sleep while the GPU is idle."""
    leakage_w: float
    """Leakage at nominal voltage in watts."""
    leakage_exponent: float
    """Exponent e of the leakage, which is proportional to (core voltage) ** e."""
    clock_w: float
    """Power of the clock tree at nominal clock and voltage in watts."""
    tdp_w: float
    power_min_w: float
    power_max_w: float
    """Highest power limit in watts."""
    range_assumed: bool
    """Whether the range of power limits is only assumed. Limits outside an assumed range are accepted, too."""
    long_run: float
    """Factor on the energies of tensor operations in `energy_j` for runs of a second or longer. The factor exceeds 1 if
    the energies were fitted to short runs or to uninitialized inputs, which take less energy."""
    energy_j: Mapping[str, float]
    """Joules of one event at nominal voltage, keyed by event."""

    @classmethod
    @lru_cache(maxsize=64)
    def for_gpu(cls, gpu: GPU, inputs: str = RANDOM) -> "PowerModel":
        """Return the power model of a GPU. `inputs` is the kind of input data: `random` or `zeros`. Raise `UsageError`
        if there are no coefficients for the GPU."""
        return cls.of_coefficients(gpu, _coefficients(), inputs)

    @classmethod
    def of_coefficients(cls, gpu: GPU, coefficients: Mapping[str, Any], inputs: str = RANDOM) -> "PowerModel":
        """Return the power model of a GPU with custom coefficients, in the structure of `power.toml`."""
        if (chip := coefficients["chip"].get(f"sm_{gpu.sm}")) is None:
            raise unknown("compute capability of the power model", f"sm_{gpu.sm}", coefficients["chip"])
        if inputs not in INPUTS:
            raise unknown("inputs", inputs, INPUTS)
        memory_type, (_, device_gib) = next(
            (name, figures) for name, figures in chip["memory"].items() if gpu.memory_rate_hz <= figures[0]
        )
        memory, boost, board = coefficients["memory"][memory_type], gpu.boost_clock_hz, coefficients["board"]
        saves = "Laptop" in gpu.title or gpu.tdp_w <= SLOT_W
        rise = chip.get("low_power_rise" if saves else "rise", chip.get("rise", 0.0))
        curve = VoltageCurve(chip["knee_hz"], chip["steepness"], chip.get("slope", 1.0), rise)
        volts = float(curve.over_knee(boost))
        # A GPU needs enough memory devices for the width of its memory bus and for its memory size.
        devices = max(gpu.memory_bus_bits / memory["device_bits"], gpu.memory_bytes / 2**30 / device_gib)
        geforce = "GeForce" in gpu.title
        exponent = chip.get("geforce_leakage_exponent", 1.0) if geforce and not saves else 1.0
        partners = geforce and "Laptop" not in gpu.title and gpu.power_max_w <= gpu.tdp_w
        links_w = board["links_w"] if gpu.name in board["linked"] else 0.0
        return cls(
            title=gpu.title,
            memory=memory_type,
            boost_hz=boost,
            # Do not assume a higher clock in laptops, because their makers choose it within the data sheet's range.
            running_hz=max(boost, chip.get("geforce_hz", 0.0)) if geforce and "Laptop" not in gpu.title else boost,
            minimum_hz=coefficients["clock"]["minimum_hz"],
            maximum_hz=boost * (chip.get("headroom", 1.0) if any(word in gpu.title for word in _DESKTOP) else 1.0),
            curve=curve,
            volts=volts,
            board_w=board["fixed_w"] + board["fraction_of_tdp"] * gpu.tdp_w + links_w + memory["standby_w"] * devices,
            links_w=links_w,
            leakage_w=chip["leakage_w"] * gpu.sms * volts**exponent,
            leakage_exponent=exponent,
            clock_w=chip["clock_pj"] * 1e-12 * gpu.sms * boost * volts**2,
            tdp_w=gpu.tdp_w,
            power_min_w=gpu.power_min_w,
            power_max_w=round(gpu.tdp_w * PARTNER_HEADROOM) if partners else gpu.power_max_w,
            range_assumed=gpu.power_range_assumed,
            long_run=coefficients["data"]["long_run"] if chip.get("short_runs") and inputs == RANDOM else 1.0,
            energy_j=_event_energies(gpu, coefficients, volts, inputs == ZEROS) | {DRAM: memory["pj_per_bit"] * 8e-12},
        )

    @property
    def static_w(self) -> float:
        """Return the static power in watts at nominal voltage: board, memory standby and leakage."""
        return self.board_w + self.leakage_w

    @property
    def idle_w(self) -> float:
        """Return the power of the idle GPU in watts."""
        return self.board_w - self.links_w + float(self.leakage_at(self.minimum_hz))

    def voltage(self, clock_hz: ArrayLike) -> Floats:
        """Return the core voltage at a clock, as a fraction of the nominal core voltage."""
        return self.curve.over_knee(clock_hz) * (1.0 / self.volts)

    def leakage_at(self, clock_hz: ArrayLike) -> Floats:
        """Return the leakage in watts at a clock."""
        return np.asarray(self.leakage_w * self.voltage(clock_hz) ** self.leakage_exponent)

    def event_j(self, event: str) -> float:
        """Return the energy in joules of one event at nominal voltage.

        Raise `UsageError` if the event is unknown. The events are `issue.<class>` (one warp instruction), `mma.<dtype>`
        (one FLOP of a tensor core), `shared.wavefronts` (128 bytes), `l1.requests`, `l2.sectors` (32 bytes) and
        `dram.bytes`.
        """
        energy = self.energy_j.get(event)
        if energy is None and event.startswith(ISSUE):
            # Instruction classes without a coefficient have the energy of `issue.other`.
            energy = self.energy_j["issue.other"]
        if energy is None:
            raise unknown("energy event", event, self.energy_j)
        return energy

    def dynamic(self, events: Mapping[str, ArrayLike]) -> tuple[Floats, Floats]:
        """Return (core energy at nominal voltage, DRAM energy) of each launch in joules. `events` contains the numbers
        of events, keyed by event."""
        core: Any = 0.0
        for event, count in events.items():
            if event != DRAM:
                core = core + np.multiply(count, self.event_j(event))
        dram = np.multiply(events.get(DRAM, 0.0), self.event_j(DRAM))
        return np.asarray(core, dtype=np.float64), np.asarray(dram, dtype=np.float64)

    def power_at(self, clock_hz: ArrayLike, rates: Mapping[str, ArrayLike]) -> Floats:
        """Return the power in watts that each of N launches draws without a power limit.

        Args:
            clock_hz: Core clock of each launch in hertz.
            rates: Number of events per second of each launch, keyed by event.
        """
        volts = self.voltage(clock_hz)
        core_w, dram_w = self.dynamic(rates)
        ratio = np.multiply(clock_hz, 1.0 / self.boost_hz)
        return self.board_w + self.leakage_at(clock_hz) + (self.clock_w * ratio + core_w) * volts * volts + dram_w

    def apply_power_limit(
        self, nominal: NominalCosts, limit_w: float | Floats | None = None, clock_hz: float | None = None
    ) -> LimitedCosts:
        """Return the costs of N launches, each at the highest clock that keeps it within a power limit.

        Raise `UsageError` if the GPU does not accept the power limit or clock.

        Args:
            nominal: Costs of the launches without a power limit.
            limit_w: Power limit in watts, or one limit for each launch. The default is the TDP.
            clock_hz: Highest allowed clock in hertz. The default is `running_hz`.
        """
        point = self._limit(limit_w), self._clock(clock_hz)
        setting = self._setting((point,)) if np.ndim(point[0]) else self.setting((point,))
        launches = nominal.columns()
        return LimitedCosts._make([*setting.costs(launches)[:, 0], launches[4]])

    def setting(self, points: Sequence[tuple[Any, float | None]]) -> Any:
        """Return a cached engine object that applies P pairs of power limit (W) and highest clock (Hz) to launches.
        None in a pair means the default of `apply_power_limit`."""
        points = tuple(points)
        setting = self._settings.get(points)
        if setting is None:
            if len(self._settings) >= _MOST_CACHED:
                self._settings.clear()
            setting = self._settings[points] = self._setting(
                tuple([(self._limit(limit_w), self._clock(clock_hz)) for limit_w, clock_hz in points])
            )
        return setting

    def _setting(self, points: tuple[tuple[float | Floats, float], ...]) -> Any:
        starts = tuple([clock_hz / self.boost_hz for _, clock_hz in points])
        own = tuple(dict.fromkeys(starts))
        below = np.concatenate([clocks_between(self.minimum_hz / self.boost_hz, start) for start in own])
        first = np.array([own.index(start) * CLOCKS for start in starts])
        limits = np.stack([np.atleast_1d(np.asarray(limit_w, np.float64)) for limit_w, _ in points])
        highest, table = self._at_clocks(np.array(starts)), self._at_clocks(below)
        ratio, static_w, tree_w, volts_squared = table
        search = np.stack([ratio**-OVERLAP, static_w + tree_w * volts_squared, volts_squared])
        hz = self.boost_hz
        return query.PowerLimits(limits, highest, highest[0] * hz, first, table, below * hz, search)

    def _at_clocks(self, ratio: Floats) -> Floats:
        """Return the rows (ratio, static W, clock tree W at nominal voltage, squared relative voltage), one column per
        clock. `ratio` contains the clocks divided by the boost clock."""
        clock_hz = ratio * self.boost_hz
        volts = self.voltage(clock_hz)
        static_w = self.board_w + self.leakage_at(clock_hz)
        return np.stack([ratio, static_w, self.clock_w * ratio, volts * volts])

    def breakdown(self, events: Mapping[str, ArrayLike], limited: LimitedCosts) -> dict[str, Floats]:
        """Split the energy of N launches into parts that add up to `limited.energy_j`.

        Return the joules of each part in each launch. The parts are `static`, `clock` (the clock tree), and
        groups of events such as `issue`, which is the group of all events `issue.*`.

        Args:
            events: Number of events of each launch, keyed by event.
            limited: Costs of the launches.
        """
        squared = self.voltage(limited.clock_hz) ** 2
        parts: dict[str, Floats] = {"static": limited.static_j, "clock": limited.core_j}
        for event, count in events.items():
            group = event.split(".")[0]
            scale = 1.0 if event == DRAM else squared
            joules = np.multiply(count, self.event_j(event)) * scale
            parts[group] = parts.get(group, 0.0) + joules
            if event != DRAM:
                parts["clock"] = parts["clock"] - joules
        return parts

    @cached_property
    def _settings(self) -> dict[tuple[tuple[Any, float | None], ...], Any]:
        return {}

    def _limit(self, limit_w: float | Floats | None) -> float | Floats:
        if limit_w is None:
            return self.tdp_w
        for limit in (limit_w,) if isinstance(limit_w, float | int) else (float(limit_w.min()), float(limit_w.max())):
            if not (self.power_min_w <= limit <= self.power_max_w or (self.range_assumed and 0.0 < limit < inf)):
                raise _out_of_range("power limit", limit, self.power_min_w, self.power_max_w, "W", self.title)
        return limit_w

    def _clock(self, clock_hz: float | None) -> float:
        clock = self.running_hz if clock_hz is None else clock_hz
        if not self.minimum_hz <= clock <= self.maximum_hz:
            mhz, low, high = (value * 1e-6 for value in (clock, self.minimum_hz, self.maximum_hz))
            raise _out_of_range("clock", mhz, low, high, "MHz", self.title)
        return clock


def _event_energies(gpu: GPU, coefficients: Mapping[str, Any], volts: float, zeros: bool) -> dict[str, float]:
    """Return the energy in joules of each event at nominal voltage.

    Args:
        volts: Nominal core voltage, as a fraction of the voltage at the knee.
        zeros: Whether the input data are constant, which takes less energy.
    """
    chip, tensor = coefficients["chip"][f"sm_{gpu.sm}"], coefficients["tensor"]
    # A tensor core at half rate holds its operands for twice the clocks, so each operation takes more energy.
    full_rate = chip.get("full_rate", 0)
    slowdown = max(full_rate / gpu.tensor_fma_per_clk_sm.get("f16", full_rate or 1), 1.0)
    units = {
        "fma32": chip["fma32_pj"],
        "mma_bf16": chip["mma_bf16_pj"] * (1.0 + tensor["idle_share"] * (slowdown - 1.0)),
    }
    energies = {}
    for name, entry in coefficients["event"].items():
        toggling = coefficients["data"]["zeros"] if zeros and entry.get("arithmetic") else 1.0
        energies[name] = (
            chip.get("ratio", {}).get(name, entry["ratio"])
            * toggling
            * units[entry.get("unit", "fma32")]
            * 1e-12
            * volts**2
        )
    return energies


def _out_of_range(what: str, value: float, low: float, high: float, unit: str, title: str) -> UsageError:
    accepted = f"the {title} accepts {low:g} to {high:g} {unit}"
    if not value > 0:  # The comparison also rejects NaN.
        return UsageError(f"{what} must be positive, not {value:g} {unit}; {accepted}")
    return UsageError(f"{what} {value:g} {unit}: {accepted}; nearest {min(max(value, low), high):g} {unit}")


@cache
def _coefficients() -> dict[str, Any]:
    return shipped_toml(Path(__file__).with_name("power.toml"))
