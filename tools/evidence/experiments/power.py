"""Compare the power model with recorded power and energy, with coefficients fitted with and without the GPU.

There is a table for each kind of recording: loads at fixed clocks, sweeps over clocks, library GEMMs on an H200, a TF32
matmul under power limits, and large matmuls at the power limit in short and long runs. "Held out" means that the
coefficients were fitted without the recordings of that GPU. `--quick` skips these fits. `--json` writes the rows for
`tools/evidence intervals`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from front import DATA, Data, Table

from evidence.cases import Cases
from evidence.experiments.fit_power import Coefficients, Predictor, at_limit, fit, shipped, usable
from evidence.recordings import power as recordings
from evidence.recordings.files import present
from evidence.recordings.power import Load
from evidence.recordings.power_of_products import REACHED, all_loads, sustained_products
from kernrec.gpu import find_gpu
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.power import PowerModel

LOADS = {
    "roofline": "stream of FMA", "FMA": "loop of FMA", "BabelStream": "BabelStream", "vector": "vector addition",
    "TF32": "product, tf32", "GEMM": "product, bfloat16", "shmembench": "shmembench",
}  # fmt: skip
"""Name of the kernel, keyed by the first word of a recording's name."""


def run(data: Data = DATA, quick: bool = False, json: Path | None = None) -> None:
    present(data / "power")
    loads, kernels = all_loads(data), list(recordings.kernels(data))
    usual = usable(loads)
    gpus = dict.fromkeys(load.gpu for load in usual)
    held_out = {} if quick else {gpu: fit([load for load in usual if load.gpu != gpu]) for gpu in gpus}
    table = Table("power at stated clocks over recorded power: median error, 90th percentile, ratio")
    for name in dict.fromkeys(load.recording for load in usual):
        own = [load for load in usual if load.recording == name]
        cells = _errors(own, shipped())
        if own[0].gpu in held_out:
            cells |= _errors(own, held_out[own[0].gpu], ", held out")
        table.row({"recording": name, **cells, "doubted": sum(bool(load.doubt) for load in own)})
    table = Table("\n20 kernels on the RTX 8000, never fitted; FMA, f64 and DRAM counted, others by the mix of the PTX")
    table.row({"": "kernels RTX 8000", **_errors(kernels, shipped())})
    _gemms(data, loads, quick)
    _sweeps([*loads, *kernels], {}, "fitted")
    if held_out:
        _sweeps([*loads, *kernels], held_out, "GPU held out")
    _limits(data)
    implied = [load for load in loads if load.recording.startswith(("held", "bf16 GEMM"))]
    _throughput("large matmuls at the limit", implied, held_out)
    long = list(sustained_products(data))
    _throughput("the same of random numbers, in runs of a second or so, in no fit,", long, held_out)
    _long_runs(long)
    if json is not None:
        _cases([load for load in usual if not load.doubt and kernel_of(load)], held_out).write(json)


def _cases(loads: Sequence[Load], held_out: Mapping[str, Coefficients]) -> Cases:
    """Return recorded and predicted power in watts. `held_out` has coefficients fitted without a GPU, keyed by GPU."""
    watts, predicted = np.array([load.power_w for load in loads]), np.zeros(len(loads))
    for gpu in dict.fromkeys(load.gpu for load in loads):
        rows = np.array([i for i, load in enumerate(loads) if load.gpu == gpu])
        predicted[rows] = (1.0 + off([loads[i] for i in rows], held_out.get(gpu, shipped()))) * watts[rows]
    kernels, clocks = [kernel_of(load) for load in loads], [f"{load.clock_hz * 1e-6:.0f} MHz" for load in loads]
    gpus = [load.gpu for load in loads]
    return Cases.of(kernel=kernels, gpu=gpus, problem=clocks, recorded=watts, predicted=predicted)


def kernel_of(load: Load) -> str:
    """Return the kernel that a load ran. Return "" if the load's clock was derived from its time."""
    if load.recording.startswith("mixbench"):
        return f"mixbench, {load.about.split()[1].removeprefix('benchmark_')}"
    if ", " in load.recording:
        return f"product, {load.recording.split()[0]}"
    return LOADS.get(load.recording.split()[0], "")


def off(loads: Sequence[Load], coefficients: Coefficients) -> np.ndarray:
    """Return the relative error of each load's predicted power, (N,). Predictions are capped at the power limit."""
    limits = np.array([load.limit_w or np.inf if at_limit(load) else np.inf for load in loads])
    predicted = np.minimum(Predictor(loads)(coefficients), limits)
    return np.asarray(predicted / np.array([load.power_w for load in loads]) - 1.0)


def _errors(loads: Sequence[Load], coefficients: Coefficients, suffix: str = "") -> dict[str, object]:
    error = off(loads, coefficients)
    median, high = (float(np.quantile(np.abs(error), q)) for q in (0.5, 0.9))
    cells: dict[str, object] = {f"error{suffix}": f"{median:.1%}", f"p90{suffix}": f"{high:.1%}"}
    return {"rows": len(loads), **cells, f"ratio{suffix}": float(np.median(error)) + 1.0}


def _gemms(data: Path, loads: Sequence[Load], quick: bool) -> None:
    """Print the errors of the H200's library GEMMs. Half of the shapes are held out."""
    gemms = [(load.about.split(" x ", 1)[1], load) for load in recordings.library_gemms(data)]
    held_out = set(sorted({shape for shape, _ in gemms})[1::2])
    tested, coefficients = [load for shape, load in gemms if shape in held_out], shipped()
    if not quick:
        rest = [load for load in loads if load.recording != "GEMM H200"]
        coefficients = fit(usable([*rest, *(load for shape, load in gemms if shape not in held_out)]))
    table = Table("\nlibrary GEMMs on the H200, given their time; half of the shapes held out")
    table.row({"": "GEMM H200", **_errors(tested, coefficients)})
    table.row({"": "misread rows", **_errors(list(recordings.library_gemms(data, wrong=True)), coefficients)})


def _sweeps(loads: Sequence[Load], fitted: Mapping[str, Coefficients], suffix: str) -> None:
    """Print the errors of energy (at the recorded time) and of the clock with the lowest energy, for clock sweeps."""
    sweeps: dict[tuple[str, str, float | None], list[Load]] = defaultdict(list)
    for load in loads:
        if load.latency_s and load.clock_hz and not load.doubt and "GEMM" not in load.recording:
            sweeps[load.recording, load.about.split(" MHz")[-1], load.limit_w].append(load)
    rows: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for (name, _, limit_w), sweep in sweeps.items():
        if len({load.clock_hz for load in sweep}) == len(sweep) >= 4:
            ordered = sorted(sweep, key=lambda load: load.clock_hz)
            seconds, recorded_w = np.array([(load.latency_s, load.power_w) for load in ordered]).T
            predicted_w = np.minimum(Predictor(ordered)(fitted.get(ordered[0].gpu, shipped())), limit_w or np.inf)
            joules = recorded_w * seconds
            best, chosen = int(np.argmin(joules)), int(np.argmin(predicted_w * seconds))
            error = float(np.median(np.abs(predicted_w / recorded_w - 1.0)))
            rows[name].append((abs(best - chosen), error, joules[chosen] / joules[best] - 1.0))
    table = Table(f"\nsweeps over clocks, energy for the recorded times; {suffix}")
    for name, each in (*rows.items(), ("all", [row for some in rows.values() for row in some])):
        steps, errors, lost = np.array(each).T
        table.row({
            "recording": name, "sweeps": len(each), "energy": f"{np.median(errors):.1%}",
            "best clock": f"{np.mean(steps == 0):.0%}", "within a step": f"{np.mean(steps <= 1):.0%}",
            "energy lost": f"{np.mean(lost):.1%}", "most": f"{np.max(lost):.1%}",
        })  # fmt: skip


def _limits(data: Path) -> None:
    """Print predictions for a TF32 matmul on an RTX 3090 under power limits, from its core cycles and DRAM traffic."""
    model = PowerModel.for_gpu(find_gpu("rtx3090"))
    core_j, dram_j = model.dynamic(recordings.tf32_counts(8192.0**3))
    core_s = recordings.TF32_CYCLES / model.boost_hz
    # Core and DRAM work overlap, and together took 48.6 ms at the highest limit.
    dram_s = (0.0486**4 - (core_s * model.boost_hz / model.running_hz) ** 4) ** 0.25
    table, joules = Table("\nTF32 matmul of 8192 cubed on an RTX 3090: recorded, predicted"), {}
    for load in recordings.tf32_limits(data):
        limit_w = load.limit_w or np.inf
        # Skip rows above their limit: at 100 W, the recorded GPU drew more at its lowest clock. The model keeps limits.
        if load.about.startswith("2 stages") and load.power_w <= 1.05 * limit_w:
            limited = model.apply_power_limit(NominalCosts(core_s, dram_s, 0.0, core_j, dram_j), limit_w)
            seconds, watts = float(limited.latency_s[0]), float(limited.power_w[0])
            joules[limit_w] = load.power_w * load.latency_s, watts * seconds
            table.row({
                "limit [W]": f"{limit_w:.0f}", "ms": f"{load.latency_s * 1e3:.1f}, {seconds * 1e3:.1f}",
                "W": f"{load.power_w:.0f}, {watts:.0f}", "J": "{:.2f}, {:.2f}".format(*joules[limit_w]),
            })  # fmt: skip
    recorded_w, predicted_w = (min(joules, key=lambda limit: joules[limit][i]) for i in (0, 1))
    print(f"limit of least energy: recorded {recorded_w:.0f} W, predicted {predicted_w:.0f} W")


def _throughput(title: str, loads: Sequence[Load], held_out: Mapping[str, Coefficients]) -> None:
    table = Table(f"\n{title} that reach {REACHED:g} of the rate: throughput, predicted over recorded")
    for load in loads:
        fits = {"fitted": shipped()} | ({"held out": held_out[load.gpu]} if load.gpu in held_out else {})
        models = {name: PowerModel.of_coefficients(find_gpu(load.gpu), fitted) for name, fitted in fits.items()}
        ratios = {name: _ratio_at_limit(load, model) for name, model in models.items()}
        table.row({"": f"{load.recording}, {load.power_w:.0f} W", "GHz": load.clock_hz * 1e-9, **ratios})


def _ratio_at_limit(load: Load, model: PowerModel, more_j: float | np.ndarray = 0.0) -> float:
    """Return predicted / recorded throughput at the power limit. In each second, the core is assumed to take `more_j`
    joules more than in the model."""
    core_j, dram_j = model.dynamic(load.rates)
    launch = NominalCosts(load.clock_hz / model.boost_hz, 0.0, 0.0, core_j + more_j, dram_j)
    return 1.0 / float(model.apply_power_limit(launch, load.power_w).latency_s[0])


def _long_runs(loads: Sequence[Load]) -> None:
    """Compare the energy of tensor cores in long matmuls, and the throughput, with the power model. Skip GPUs whose
    energies were fitted to long runs."""
    rows = []
    for load, model in ((load, PowerModel.for_gpu(find_gpu(load.gpu))) for load in loads):
        if model.long_run > 1.0:
            tensor_j = model.dynamic({name: rate for name, rate in load.rates.items() if name.startswith("mma")})[0]
            missing_w = load.power_w - model.power_at(load.clock_hz, load.rates)
            implied = float(1.0 + missing_w / (tensor_j * model.voltage(load.clock_hz) ** 2))
            rows.append((load, model, tensor_j, implied))
    table = Table("\nthe same: tensor energy in long runs over that in the model; throughput, predicted over recorded")
    for load, model, tensor_j, implied in rows:
        others = float(np.median([each for other, *_, each in rows if other.gpu != load.gpu]))
        cells: dict[str, object] = {"": load.recording, "energy": implied, "energy, other GPUs": others}
        for name, long_run in (("long run", model.long_run), ("GPU held out", others)):
            cells[name] = _ratio_at_limit(load, model, (long_run - 1.0) * tensor_j)
        table.row(cells)
