"""How many configs a second kernrec's collector and Kernel Tuner measure, of one kernel on one GPU.

A part of `tools/evidence kernel-tuner --throughput N`. The kernel is the library's f32 convolution on a layer of
ResNet-50, with N configs whose launches take the same arguments, because Kernel Tuner passes one list of arguments to
all. Both start without compiled code, check every result against the reference and measure its time. kernrec then
measures the energy of the fastest configs; Kernel Tuner measures the energy of all of them in its second line
(`NVMLObserver`).
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
from front import Table
from on_gpu import NoGPUError, find_card

from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar, bind_launches
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.compile_queue import CompileQueue
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.results import CampaignSettings, MeasuringEffort, Progress
from kernrec.measure.device.nvml import choose_cards
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.op import find_op, inputs, reference
from kernrec.store.measurement import Tier

PROBLEM = find_op("conv2d").problem("f32", "nchw", n=8, c=64, h=56, w=56, k=64, r=3, s=3, padding=1)
KERNEL = find_kernel("conv2d_implicit_gemm_simt")
_SCALARS: dict[str, Any] = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}
Launches = list[tuple[dict[str, int], BoundLaunch]]


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
    launches = _alike(Space(KERNEL, gpu.sm, gpu.limits, PROBLEM.dtype, PROBLEM.layout), count)
    table = Table(f"{card.name}: {len(launches)} configs of {KERNEL.name} on {PROBLEM.key}")
    for tuner in ("kernrec collect", "Kernel Tuner, time only", "Kernel Tuner, with energy of all"):
        with tempfile.TemporaryDirectory() as folder:
            begin_s = time.perf_counter()
            if tuner == "kernrec collect":
                os.environ["KERNREC_CACHE"] = f"{folder}/cache"  # an empty cache of compiled code
                times_ms = _ours([config for config, _ in launches], gpu.sm, chosen.uuid, Path(folder))
            else:
                times_ms = _theirs(launches, "energy" in tuner)
            speed = len(launches) / (time.perf_counter() - begin_s)
        best = f"{min(times_ms):.4f}" if times_ms else "-"
        table.row({"": tuner, "configs/s": speed, "ran": len(times_ms), "best [ms]": best})
    return 0


def _alike(space: Space, count: int) -> Launches:
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


def _ours(configs: list[dict[str, int]], sm: int, uuid: str, folder: Path) -> list[float]:
    """Milliseconds of each config that ran, by the collector's campaign."""
    times: list[float] = []
    tasks = tuple(Task(KERNEL.name, KERNEL.hash, config, PROBLEM, KERNEL) for config in configs)
    client = WorkerClient({"device": "cuda", "uuid": uuid, "scratch": str(folder)})
    compile_queue = CompileQueue(sm, max(1, (os.cpu_count() or 2) - 1))

    def report(step: Progress) -> None:
        measurement = step.measurement
        if measurement and measurement.protocol.tier == Tier.SCREEN and measurement.latency_s is not None:
            times.append(measurement.latency_s * 1e3)

    with Journal(journal_path(folder / "throughput")) as journal:
        settings = CampaignSettings("throughput", MeasuringEffort(None, 0))
        planned = [PlannedProblem("", PROBLEM, tasks)]
        Campaign(client, planned, journal, settings, CampaignHooks(report=report), compile_queue).run()
    return times


def _theirs(launches: Launches, with_energy: bool) -> list[float]:
    """Milliseconds of each config that ran, by `tune_kernel` over the same configs."""
    import kernel_tuner
    from kernel_tuner.observers.nvml import NVMLObserver

    tensors = inputs(PROBLEM)
    outputs = {name: values.astype(np.float32) for name, values in reference(PROBLEM, tensors).items()}
    arguments, answer = [], []
    for argument in launches[0][1].arguments:
        if isinstance(argument, Pointer):
            output = argument.name in outputs
            values = np.zeros_like(outputs[argument.name]) if output else tensors.get(argument.name)
            arguments.append(np.uint64(0) if argument.null or values is None else values.reshape(-1))
            answer.append(outputs[argument.name].reshape(-1) if output else None)
        elif isinstance(argument, Scalar):
            arguments.append(_SCALARS[argument.ctype](argument.value))
            answer.append(None)
    macros = {t.name: t.macro for t in KERNEL.tunables if not t.launch}
    blocks = ("block_size_x", "block_size_y", "block_size_z")
    rows = [
        {macros[name]: value for name, value in config.items() if name in macros}
        | dict(zip(blocks, launch.block, strict=True))
        for config, launch in launches
    ]
    by_row = {tuple(row.values()): launch for row, (_, launch) in zip(rows, launches, strict=True)}

    def launch_of(params: dict[str, Any]) -> BoundLaunch:
        return by_row[tuple(params[name] for name in rows[0])]

    def among(*row: object, **named: object) -> bool:  # Kernel Tuner calls it in both ways
        return (row or tuple(named.values())) in by_row

    tunable = {name: sorted({row[name] for row in rows}) for name in rows[0]}
    fixed = KERNEL.defines(launches[0][0], PROBLEM.dtype, PROBLEM.layout)
    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = kernel_tuner.tune_kernel(
            launches[0][1].entry, KERNEL.source, lambda params: launch_of(params).grid, arguments, tunable,
            grid_div_x=[], grid_div_y=[], grid_div_z=[], restrictions=[among], answer=answer, atol=1e-3, lang="cupy",
            smem_args={"size": lambda params: launch_of(params).shared_bytes},
            compiler_options=[f"-D{name}={value}" for name, value in fixed.items() if name not in tunable],
            observers=[NVMLObserver(["nvml_energy"])] if with_energy else None, quiet=True,
        )  # fmt: skip
    return [float(result["time"]) for result in results if isinstance(result.get("time"), (int, float))]
