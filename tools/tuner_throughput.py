"""Compare how many configs per second kernrec's collector and Kernel Tuner measure, of one kernel on one GPU.

Run by `compare_kernel_tuner.py --throughput N`. The kernel is the library's f32 convolution on a layer of ResNet-50,
with N configs whose launches take the same arguments, because Kernel Tuner passes one list of arguments to all. Both
start without compiled code, check every result against the reference and measure its time. kernrec then measures the
energy of the fastest configs; Kernel Tuner measures the energy of all of them in its second line (`NVMLObserver`).
"""

import contextlib
import importlib.util
import io
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from on_gpu import NoGPUError, find_card

from kernrec.gpu import find_gpu
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, bind_launches
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks, CampaignSettings
from kernrec.measure.campaign.compile_queue import CompileQueue
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.device.nvml import choose_cards
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.op import Problem, find_op, inputs, reference
from kernrec.store.measurement import Tier

PROBLEM = find_op("conv2d").problem("f32", "nchw", n=8, c=64, h=56, w=56, k=64, r=3, s=3, padding=1)
KERNEL = find_kernel("conv2d_implicit_gemm_simt")
_SCALARS: dict[str, Any] = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}


def compare(count: int) -> int:
    """Print a line for each tuner; exit status 1 without a GPU or Kernel Tuner."""
    try:
        card = find_card()
    except NoGPUError as error:
        print(f"needs a GPU: {error}")
        return 1
    if importlib.util.find_spec("kernel_tuner") is None:
        print("needs Kernel Tuner: pip install kernel-tuner")
        return 1
    chosen = choose_cards("0")[0]
    gpu = find_gpu(chosen.name)
    launches = alike(Space(KERNEL, gpu.sm, gpu.limits, PROBLEM.dtype, PROBLEM.layout), count)
    print(f"{card.name}: {len(launches)} configs of {KERNEL.name} on {PROBLEM.key}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNREC_CACHE"] = f"{folder}/cache"  # an empty cache of compiled code
        start = time.perf_counter()
        rows = ours([config for config, _ in launches], gpu.sm, chosen.uuid, Path(folder))
        print_line("kernrec collect", len(launches), rows, time.perf_counter() - start)
    for with_energy in (False, True):
        start = time.perf_counter()
        rows = theirs(KERNEL, PROBLEM, launches, with_energy)
        print_line(
            f"Kernel Tuner, {'with energy of all' if with_energy else 'time only'}",
            len(launches),
            rows,
            time.perf_counter() - start,
        )
    return 0


def alike(space: Space, count: int) -> list[tuple[dict[str, int], BoundLaunch]]:
    """At most `count` configs of one launch and different variants, from the largest set with the same entry and
    arguments."""
    groups: dict[Any, dict[str, tuple[dict[str, int], BoundLaunch]]] = {}
    for row in np.random.default_rng(0).permutation(space.at(PROBLEM).rows).tolist():
        config = space.config(row)
        first, *more = bind_launches(KERNEL, config, PROBLEM, space.sm)
        if not more:
            variant = KERNEL.variant_key(config, PROBLEM.dtype, PROBLEM.layout)
            groups.setdefault((first.entry, first.arguments), {}).setdefault(variant, (config, first))
    return list(max(groups.values(), key=len).values())[:count]


def ours(configs: list[dict[str, int]], sm: int, uuid: str, folder: Path) -> list[float]:
    """Milliseconds of each config that ran, by the collector's campaign."""
    times: list[float] = []
    tasks = tuple(Task(KERNEL.name, KERNEL.hash, config, PROBLEM, KERNEL) for config in configs)
    client = WorkerClient({"device": "cuda", "uuid": uuid, "scratch": str(folder)})
    compile_queue = CompileQueue(sm, max(1, (os.cpu_count() or 2) - 1))

    def report(step: Progress) -> None:
        measurement = step.measurement
        if measurement and measurement.protocol.tier == Tier.SCREEN and measurement.latency_s is not None:
            times.append(measurement.latency_s * 1e3)

    with Journal(folder / "throughput.journal") as journal:
        settings = CampaignSettings("throughput", MeasuringEffort(None, 0))
        planned = [PlannedProblem("", PROBLEM, tasks)]
        campaign = Campaign(client, planned, journal, settings, CampaignHooks(report=report), compile_queue)
        campaign.run()
    return times


def theirs(
    kernel: Kernel, problem: Problem, launches: list[tuple[dict[str, int], BoundLaunch]], with_energy: bool
) -> list[float]:
    """Milliseconds of each config that ran, by `tune_kernel` over the same configs."""
    import kernel_tuner

    given = inputs(problem)
    outputs = {name: values.astype(np.float32) for name, values in reference(problem, given).items()}
    arguments, answer = [], []
    for argument in launches[0][1].arguments:
        if isinstance(argument, Pointer):
            output = argument.name in outputs
            values = np.zeros_like(outputs[argument.name]) if output else given.get(argument.name)
            arguments.append(np.uint64(0) if argument.null or values is None else values.reshape(-1))
            answer.append(outputs[argument.name].reshape(-1) if output else None)
        elif isinstance(argument, Scalar):
            arguments.append(_SCALARS[argument.ctype](argument.value))
            answer.append(None)
    first = {t.name: t for t in kernel.tunables if not t.launch}
    rows = [
        {first[name].macro: value for name, value in config.items() if name in first}
        | dict(zip(("block_size_x", "block_size_y", "block_size_z"), launch.block, strict=True))
        for config, launch in launches
    ]
    by_row = {tuple(row.values()): launch for row, (_, launch) in zip(rows, launches, strict=True)}

    def launch_of(params: dict[str, Any]) -> BoundLaunch:
        return by_row[tuple(params[name] for name in rows[0])]

    def among(*row: object, **named: object) -> bool:  # Kernel Tuner calls it in both ways
        return (row or tuple(named.values())) in by_row

    observers = [_energy_observer()] if with_energy else None
    tunable = {name: sorted({row[name] for row in rows}) for name in rows[0]}
    fixed = kernel.defines(launches[0][0], problem.dtype, problem.layout)
    macros = [f"-D{name}={value}" for name, value in fixed.items() if name not in tunable]
    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = kernel_tuner.tune_kernel(
            launches[0][1].entry, kernel.source, lambda params: launch_of(params).grid, arguments, tunable,
            grid_div_x=[], grid_div_y=[], grid_div_z=[], restrictions=[among], answer=answer, atol=1e-3, lang="cupy",
            smem_args={"size": lambda params: launch_of(params).shared_bytes}, compiler_options=macros,
            observers=observers, quiet=True,
        )  # fmt: skip
    return [float(result["time"]) for result in results if isinstance(result.get("time"), (int, float))]


def _energy_observer() -> Any:
    from kernel_tuner.observers.nvml import NVMLObserver

    return NVMLObserver(["nvml_energy"])


def print_line(label: str, count: int, times_ms: list[float], seconds: float) -> None:
    """One line of the comparison."""
    best = f"{min(times_ms):.4f} ms" if times_ms else "none"
    print(f"  {label:32}{count / seconds:8.2f} configs/s   {len(times_ms)} ran, best {best}", flush=True)
