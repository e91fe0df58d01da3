"""`kernrec monitor`: record power, energy, clocks and temperature of a GPU while a command runs."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.options import argument, option
from kernrec.cli.output import AsJson, print_notes
from kernrec.errors import UsageError
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.device.interface import SensorReading
    from kernrec.measure.monitor import TraceSummary

_SHOWN_EVERY_S = 0.5
_PERIOD_S = 0.1
_ROUGH_S = 1.0  # A power sensor is updated only every 15 to 100 ms (arXiv 2312.02741).


class MonitorOptions(options.Options):
    databases_used = options.OWN
    command: Annotated[list[str] | None, argument("Command to run, after --.")] = None
    trace: Annotated[Path | None, option("Write the samples to a .csv file.")] = None
    as_json: AsJson = False


@options.takes(MonitorOptions)
def monitor(wanted: MonitorOptions) -> None:
    """Monitor a GPU while a command runs, and print energy, mean power, clocks, temperature and throttle reasons.

    The first GPU in CUDA_VISIBLE_DEVICES is monitored. The energy is that of the whole board. The summary goes to
    standard error. Standard output and the exit status are those of the command. Signals are passed on to the command.
    Monitoring ends with the command, even if other processes that the command started still run.
    """
    from kernrec.measure.monitor import NvmlReader, TraceFile, summarize_trace, watch_command

    if not wanted.command:
        raise UsageError("give the command to run, after --")
    if wanted.trace is not None and wanted.trace.suffix != ".csv":
        raise UsageError(f"--trace {wanted.trace}: expected a .csv file")
    samples: list[SensorReading] = []
    reader = NvmlReader()
    notes, title = reader.notes, f"{reader.name}, one sample every {human(_PERIOD_S, 's')}"
    with nullcontext() if wanted.trace is None else TraceFile(wanted.trace) as file:

        def show(sample: "SensorReading") -> None:
            before_s = samples[-1].time_s if samples else -_SHOWN_EVERY_S
            if sys.stderr.isatty() and sample.time_s // _SHOWN_EVERY_S > before_s // _SHOWN_EVERY_S:
                print(f"\r{line(sample)}   ", end="", file=sys.stderr, flush=True)
            samples.append(sample)
            if file is not None:
                file.add(sample)

        status = watch_command(wanted.command, reader, _PERIOD_S, show)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    summary = summarize_trace(samples)
    if summary.energy_j is not None and summary.duration_s < _ROUGH_S:
        notes.append("energy over less than a second is rough: GPUs update their sensors only every 15 to 100 ms")
    stream = sys.stderr  # Leave standard output to the monitored command.
    if wanted.as_json:
        print(json.dumps({**vars(summary), "exit_status": status, "notes": notes}, indent=2), file=stream)
    else:
        print("\n".join(_lines(summary, title)), file=stream)
        print_notes(notes)
    if status:
        raise typer.Exit(status)


def line(sample: "SensorReading") -> str:
    quantities = ((sample.time_s, "s"), (sample.power_w, "W"), (sample.sm_clock_hz, "Hz"))
    parts = [human(value, unit) for value, unit in quantities if value is not None]
    parts += [] if sample.temperature_c is None else [f"{sample.temperature_c:.0f} C"]
    return ", ".join([*parts, ", ".join(sorted(sample.reasons)) or "not throttled"])


def _lines(summary: "TraceSummary", title: str) -> list[str]:
    lines = [f"{title}: {human(summary.duration_s, 's')}, {summary.samples} samples"]
    if summary.energy_j is not None:
        source = "energy counter" if summary.energy_from == "counter" else "integrated from power samples"
        lines.append(f"  energy       {human(summary.energy_j, 'J')} ({source}, whole board)")
    if summary.mean_power_w is not None and summary.max_power_w is not None:
        mean, most = human(summary.mean_power_w, "W"), human(summary.max_power_w, "W")
        lines.append(f"  power        mean {mean}, maximum {most}")
    if summary.mean_sm_clock_hz is not None and summary.min_sm_clock_hz is not None:
        mean, lowest = human(summary.mean_sm_clock_hz, "Hz"), human(summary.min_sm_clock_hz, "Hz")
        lines.append(f"  core clock   mean {mean}, minimum {lowest}")
    if summary.max_temperature_c is not None:
        lines.append(f"  temperature  maximum {summary.max_temperature_c:.0f} C")
    reasons = [f"{name} {share * 100:.0f} %" for name, share in summary.throttled.items()]
    lines.append(f"  throttled    {', '.join(reasons) or 'never'} (share of samples)")
    return lines
