"""Hold the power model against power and energy that others recorded on real GPUs.

Usage: python tools/check_power.py [--data PATH] [--quick]   (kernrec and SciPy installed; PATH: shared data)

Prints, fitted and left out: power of each recording at known clocks; the cap of least energy of a memory-bound load;
power of library GEMMs on an H200, given their time; time, power and energy of a product on an RTX 3090 under power
limits; and the powers of every GPU of the catalog. "Left out" is the error of coefficients that were fitted again
without the recordings of that card; `--quick` leaves this out. Exits with status 1 when an error is above its aim, 2
when there is no data.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import power_recordings as recordings
from fit_power import DEFAULT_DATA, at_limit, fit, predictor, shipped, usable
from power_recordings import Load

from kernrec.gpu import all_gpus, find_gpu
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel

AIM, GEMM_AIM, LIMIT_AIM = 0.08, 0.10, 0.15
"""Largest errors: median over a recording, over the library GEMMs, and of the product under limits."""


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted power over the loads of a recording; a limit cuts predictions off."""

    rows: int
    median: float
    ratio: float
    p90: float

    @classmethod
    def of(cls, loads: Sequence[Load], coefficients: dict[str, object]) -> "Errors":
        """The errors of these coefficients."""
        limits = np.array([np.inf if not at_limit(load) else load.limit_w or np.inf for load in loads])
        predicted = np.minimum(predictor(loads)(coefficients), limits)
        error = predicted / np.array([load.power_w for load in loads]) - 1.0
        absolute = np.abs(error)
        return cls(
            len(loads), float(np.median(absolute)), float(np.median(error)) + 1, float(np.quantile(absolute, 0.9))
        )

    def __str__(self) -> str:
        return f"{self.median:6.1%} {self.p90:6.1%} {self.ratio:6.2f}"


def check_recordings(loads: Sequence[Load], leave_out: bool) -> float:
    """Print the errors of each recording, with the shipped coefficients and with those of the other cards; the largest
    median with the shipped ones."""
    usual = usable(loads)
    print("power at known clocks, over recorded power: median error, 90th percentile, median ratio")
    print(f"  {'recording':26} {'rows':>5}   fitted                 card left out")
    largest = 0.0
    refitted: dict[str, dict[str, object]] = {}
    for name in dict.fromkeys(load.recording for load in usual):
        own = [load for load in usual if load.recording == name]
        errors, card = Errors.of(own, shipped()), own[0].gpu
        largest = max(largest, errors.median if name != "GEMM H200" else 0.0)
        line = f"  {name:26} {errors.rows:5}   {errors}"
        if leave_out:
            if card not in refitted:
                refitted[card] = fit([load for load in usual if load.gpu != card])
            line += f"   {Errors.of(own, refitted[card])}"
        print(line, flush=True)
    return largest


def check_kernels(data: Path) -> None:
    """Print the errors of kernels of which only the FMA, f64 and DRAM activity is known."""
    errors = Errors.of(list(recordings.kernels(data)), shipped())
    print(f"\n20 kernels on the RTX 8000, never fitted; only FMA, f64 and DRAM counted: {errors}\n")


def check_gemms(data: Path, leave_out: bool) -> float:
    """Print the errors of the H200's GEMMs, shapes left out of the fit; the median error."""
    gemms = list(recordings.library_gemms(data))
    shapes = sorted({load.about.split(" x ", 1)[1] for load in gemms})
    kept = set(shapes[1::2])
    test = [load for load in gemms if load.about.split(" x ", 1)[1] in kept]
    coefficients = shipped()
    if leave_out:
        rest = [load for load in recordings.all_loads(data) if load.recording != "GEMM H200"]
        train = [load for load in gemms if load.about.split(" x ", 1)[1] not in kept]
        coefficients = fit(usable([*rest, *train]))
    errors = Errors.of(test, coefficients)
    what = "shapes left out" if leave_out else "fitted"
    print(f"power of library GEMMs on the H200, given their time, {what}: {errors.rows} rows  {errors}")
    misread = list(recordings.library_gemms(data, wrong=True))
    print(f"  misread rows (see power_recordings.py): {len(misread)} rows  {Errors.of(misread, coefficients)}")
    print()
    return errors.median


def check_caps(data: Path) -> None:
    """Print where BabelStream takes least energy on an A100 over its caps, predicted and recorded."""
    model = PowerModel.for_gpu(find_gpu("a100-pcie-80gb"))
    streams = list(recordings.clock_and_cap(data))
    print("BabelStream on an A100 at 1,410 MHz under caps: recorded and predicted W; the run's J")
    for load in sorted(streams, key=lambda load: load.limit_w or 0.0):
        if load.clock_hz == 1410e6:
            core_w, dram_w = model.dynamic(load.rates)
            # What a cap stretches is recorded time; the load is bound by DRAM alone.
            nominal = NominalCosts(0.0, 1.0, 0.0, core_w, dram_w)
            limited = model.apply_power_limit(nominal, load.limit_w, load.clock_hz)
            watts, joules = float(limited.power_w[0]), float(limited.energy_j[0]) * load.latency_s
            print(
                f"  cap {load.limit_w:3.0f} W: {load.power_w:5.0f} {watts:5.0f} W"
                f" {load.power_w * load.latency_s:6.0f} {joules:6.0f} J"
            )
    print()


def check_limits(data: Path) -> tuple[float, float]:
    """Print a TF32 product on an RTX 3090 under limits, given its core cycles and DRAM traffic.

    Returns:
        The largest error of power, and by how many watts the limit of least energy is missed.
    """
    model = PowerModel.for_gpu(find_gpu("rtx3090"))
    core_j, dram_j = model.dynamic(recordings.tf32_counts(8192.0**3))
    core_s = recordings.TF32_CYCLES / model.boost_hz
    # The two overlap; together they take the recorded 48.6 ms at the highest limit.
    dram_s = (0.0486**4 - (core_s * model.boost_hz / model.running_hz) ** 4) ** 0.25
    print("TF32 product of 8192 cubed on an RTX 3090 under limits: recorded, predicted")
    print("  limit W      time ms         power W         energy J")
    errors, least = [], {}
    loads = [load for load in recordings.tf32_limits(data) if load.about.startswith("2 stages")]
    for load in loads:
        limited = model.apply_power_limit(NominalCosts(core_s, dram_s, 0.0, core_j, dram_j), load.limit_w)
        seconds, watts = float(limited.latency_s[0]), float(limited.power_w[0])
        errors.append(abs(watts / load.power_w - 1))
        print(
            f"  {load.limit_w:5.0f}   {load.latency_s * 1e3:6.1f} {seconds * 1e3:6.1f}"
            f"   {load.power_w:6.0f} {watts:6.0f}   {load.power_w * load.latency_s:6.2f} {watts * seconds:6.2f}"
        )
        least[load.limit_w or 0.0] = load.power_w * load.latency_s, watts * seconds
    best = [min(least, key=lambda limit: least[limit][i]) for i in (0, 1)]
    print(f"  limit of least energy: recorded {best[0]:.0f} W, predicted {best[1]:.0f} W\n")
    return max(errors), abs(best[0] - best[1])


def show_all() -> None:
    """Print the model's powers of every GPU of the catalog at its boost clock, without a power limit."""
    print("at the boost clock, no power limit: idle, full-rate f32 FMA, DRAM copy at full bandwidth (W), and the TDP")
    for gpu in all_gpus():
        model = PowerModel.for_gpu(gpu)
        running_w = model.static_w + model.clock_w
        lanes = gpu.fma_per_clk_sm["f32"] * gpu.sms * gpu.boost_clock_hz
        fma_w = running_w + lanes / 32 * model.event_j("issue.fma32")
        dram_w = running_w + gpu.memory_bandwidth * (model.event_j("dram.bytes") + model.event_j("l2.sectors") / 32)
        print(f"  {gpu.name:24} {model.memory:7} {model.idle_w:6.0f} {fma_w:6.0f} {dram_w:6.0f} {gpu.tdp_w:6.0f}")


def main() -> int:
    """Run the checks; 0 when every error is within its aim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="the shared data folder")
    parser.add_argument("--quick", action="store_true", help="do not fit again without each card")
    args = parser.parse_args()
    data: Path = args.data
    if not (data / "power").is_dir():
        print(f"no recordings of power in {data}; name the shared data folder with --data", file=sys.stderr)
        return 2
    power = check_recordings(recordings.all_loads(data), not args.quick)
    check_kernels(data)
    gemms = check_gemms(data, not args.quick)
    check_caps(data)
    limits, missed_w = check_limits(data)
    show_all()
    return int(power > AIM or gemms > GEMM_AIM or limits > LIMIT_AIM or missed_w > 50)


if __name__ == "__main__":
    sys.exit(main())
