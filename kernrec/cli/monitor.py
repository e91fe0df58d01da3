"""`kernrec monitor`: a GPU's power, energy, clocks and temperature while a command runs."""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.quantity import duration
from kernrec.errors import UsageError
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.monitor.trace import TraceSample, TraceSummary

_SHOWN_EVERY_S = 0.5
_REPLAYED_LINES = 20
_ROUGH_S = 1.0  # cards update their power sensor every 15 to 100 ms (arXiv 2312.02741, "Part-time Power Measurements")


class MonitorOptions(options.Options):
    """The options of `kernrec monitor`."""

    command: Annotated[list[str] | None, typer.Argument(help="Command to run, after --.")] = None
    pid: Annotated[int | None, typer.Option(help="Monitor while this process runs instead.")] = None
    replay: Annotated[Path | None, typer.Option(help="Show a recorded trace instead; no GPU is needed.")] = None
    trace: Annotated[Path | None, typer.Option(help="Write the samples to a .csv or .parquet file.")] = None
    period: Annotated[str, typer.Option(help="Time between two samples, such as 100ms.")] = "100ms"
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False

    @property
    def period_s(self) -> float:
        """Seconds between two samples; `UsageError` for an option that is not accepted."""
        if sum([bool(self.command), self.pid is not None, self.replay is not None]) != 1:
            raise UsageError("give exactly one of: a command after --, --pid, --replay")
        if self.trace is not None and self.trace.suffix not in (".csv", ".parquet"):
            raise UsageError(f"--trace {self.trace}: expected a .csv or .parquet file")
        period_s = duration("--period", self.period)
        if not 0.001 <= period_s <= 3600:
            raise UsageError(f"--period {self.period}: from 1ms to 1h is accepted")
        return period_s


@options.takes(MonitorOptions)
def monitor(wanted: MonitorOptions) -> None:
    """Monitor a GPU while a command runs, and print energy, mean power, clocks, temperature and throttle reasons.

    Standard output and the exit status are the command's; the summary goes to standard error. Signals are passed on to
    the command; processes that it leaves running are not waited for. Energy is of the whole board.
    The GPU is the first that CUDA_VISIBLE_DEVICES leaves.
    """
    from kernrec.measure.monitor.trace import TraceFile, TraceSample, read_trace, summarize_trace, write_trace
    from kernrec.measure.monitor.watch import NvmlReader, watch_command, watch_process

    period_s, replay, trace = wanted.period_s, wanted.replay, wanted.trace
    samples: list[TraceSample] = []
    notes: list[str] = []
    status = 0
    if replay is not None:
        samples, title = read_trace(replay), f"replayed from {replay}"
        if trace is not None:
            write_trace(trace, samples)
        if not wanted.as_json:
            for sample in samples[:: max(len(samples) // _REPLAYED_LINES, 1)]:
                print(line(sample))
    else:
        reader = NvmlReader()
        notes, title = reader.notes, f"{reader.name}, one sample every {human(period_s, 's')}"
        with nullcontext() if trace is None else TraceFile(trace) as file:

            def show(sample: TraceSample) -> None:
                _show_live(sample, samples)
                samples.append(sample)
                if file is not None:
                    file.add(sample)

            if wanted.pid is not None:
                watch_process(wanted.pid, reader, period_s, show)
            else:
                status = watch_command(wanted.command or [], reader, period_s, show)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    summary = summarize_trace(samples)
    if summary.energy_j is not None and summary.duration_s < _ROUGH_S:
        notes.append("energy over less than a second is rough: cards update their sensors only every 15 to 100 ms")
    # Standard output belongs to the command, as with `time`.
    stream = sys.stderr if wanted.command else sys.stdout
    if wanted.as_json:
        print(json.dumps({**summary.as_dict(), "exit_status": status, "notes": notes}, indent=2), file=stream)
    else:
        print("\n".join(_lines(summary, title)), file=stream)
        print_notes(notes)
    if status:
        raise typer.Exit(status)


def _show_live(sample: "TraceSample", earlier: Sequence["TraceSample"]) -> None:
    before_s = earlier[-1].time_s if earlier else -_SHOWN_EVERY_S
    if sys.stderr.isatty() and sample.time_s // _SHOWN_EVERY_S > before_s // _SHOWN_EVERY_S:
        print(f"\r{line(sample)}   ", end="", file=sys.stderr, flush=True)


def line(sample: "TraceSample") -> str:
    """A sample as text."""
    parts = [human(sample.time_s, "s")]
    if sample.power_w is not None:
        parts.append(human(sample.power_w, "W"))
    if sample.sm_clock_hz is not None:
        parts.append(human(sample.sm_clock_hz, "Hz"))
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} C")
    return ", ".join([*parts, sample.reasons.replace("|", ", ") or "not throttled"])


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
