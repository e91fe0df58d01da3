"""Hold the power model against power and energy that others measured on real GPUs.

Usage: python tools/check_power.py [--data PATH]   (kernrec installed; PATH: shared data, default ../shared/data)

FMA-bound power against clock on the A100 PCIe 40 GB and RTX A4000 (the coefficients of sm_80 and sm_86 are fitted to
it), and the energy of a DRAM-bound vector addition on the RTX 4000 Ada (to which sm_89's leakage and GDDR6's interface
energy are fitted). Exits with status 1 when an error is above its aim, 2 when there is no data.
"""

import argparse
import csv
import sys
from pathlib import Path
from statistics import mean

import numpy as np

from kernrec.gpu import all_gpus, find_gpu
from kernrec.model.prior.power import LimitedCosts, NominalCosts, PowerModel

FMA_AIM = 0.10
DRAM_AIM = 0.15
DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column name."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fma_power_w(model: PowerModel, fma_per_launch: float, latency_s: float, clock_hz: float) -> float:
    """Power of a launch of f32 FMAs alone that took `latency_s` at `clock_hz`, without a power limit (W)."""
    core_j, dram_j = model.dynamic({"issue.fma32": np.array([fma_per_launch / 32])})
    at_boost_s = latency_s * clock_hz / model.boost_hz
    nominal = NominalCosts(at_boost_s, 0.0, 0.0, core_j, dram_j)
    limited = model.apply_power_limit(nominal, model.power_max_w, clock_hz)
    return float(limited.power_w[0])


def check_fma(data: Path) -> dict[str, float]:
    """Print predicted and measured power by clock; the mean relative error of each GPU."""
    errors: dict[str, float] = {}
    measured = rows(data / "anchors" / "power_clock_fma_f32.csv")
    for name in dict.fromkeys(row["gpu"] for row in measured):
        model = PowerModel.for_gpu(find_gpu(name))
        own = []
        print(f"{model.title}: f32 FMA; voltage rises above {model.knee_hz / 1e6:.0f} MHz")
        print("    MHz  measured W  predicted W   error")
        for row in (row for row in measured if row["gpu"] == name):
            clock_hz, power_w = float(row["observed_clock_hz"]), float(row["power_w"])
            fmas = float(row["blocks"]) * float(row["threads_per_block"]) * float(row["fma_per_thread"])
            predicted_w = fma_power_w(model, fmas, float(row["latency_s"]), clock_hz)
            own.append(predicted_w / power_w - 1)
            print(f"  {clock_hz / 1e6:5.0f} {power_w:11.1f} {predicted_w:12.1f} {own[-1]:7.1%}")
        errors[name] = mean(map(abs, own))
        print(f"  mean error {errors[name]:.1%}, largest {max(map(abs, own)):.1%}\n")
    return errors


def vector_add(
    model: PowerModel, elements: float, moved_bytes: float, latency_s: float, clock_hz: float
) -> LimitedCosts:
    """A DRAM-bound c = a + b of f32 that took `latency_s`; about 12 instructions a warp, as compilers emit it."""
    warps = elements / 32
    events = {
        "issue.fma32": warps,
        "issue.imad": 4 * warps,
        "issue.other": 7 * warps,
        "l1.requests": 3 * warps,
        "l2.sectors": moved_bytes / 32,
        "dram.bytes": moved_bytes,
    }
    core_j, dram_j = model.dynamic(events)
    return model.apply_power_limit(NominalCosts(0.0, latency_s, 0.0, core_j, dram_j), model.power_max_w, clock_hz)


def check_dram(data: Path) -> float:
    """Print predicted and measured energy of the vector addition; the mean relative error."""
    errors = []
    measured = rows(data / "anchors" / "energy_vector_add_f32.csv")
    model = PowerModel.for_gpu(find_gpu(measured[0]["gpu"]))
    print(f"{model.title}: f32 vector addition, DRAM-bound")
    print("  threads  measured J  predicted J   error")
    for row in measured:
        latency_s, energy_j = float(row["latency_s"]), float(row["energy_j"])
        moved = float(row["bytes_moved"])
        predicted_j = float(
            vector_add(model, float(row["elements"]), moved, latency_s, float(row["clock_hz"])).energy_j[0]
        )
        errors.append(predicted_j / energy_j - 1)
        print(f"  {row['threads_per_block']:>7} {energy_j:11.4f} {predicted_j:12.4f} {errors[-1]:7.1%}")
    print(f"  mean error {mean(map(abs, errors)):.1%}\n")
    return mean(map(abs, errors))


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
    data: Path = parser.parse_args().data
    if not (data / "anchors").is_dir():
        print(f"no anchors in {data}; name the shared data folder with --data", file=sys.stderr)
        return 2
    fma, dram = check_fma(data), check_dram(data)
    show_all()
    return int(max(fma.values()) > FMA_AIM or dram > DRAM_AIM)


if __name__ == "__main__":
    sys.exit(main())
