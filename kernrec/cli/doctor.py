"""`kernrec doctor`: report what this machine can measure."""

from typing import TYPE_CHECKING

import typer

from kernrec.cli import options
from kernrec.cli.output import AsJson, print_json, print_line
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.doctor import GpuDiagnosis


class DoctorOptions(options.Options):
    as_json: AsJson = False


@options.takes(DoctorOptions)
def doctor(wanted: DoctorOptions) -> None:
    """Show what this machine can measure, and which problems prevent measurements.

    The report covers the compiler, the database, and each GPU with its sensors. Probing the sensors of a GPU takes ten
    seconds. The exit status is 1 if nothing can be measured.
    """
    from kernrec.measure.doctor import diagnose

    diagnosis = diagnose(wanted.database)
    if wanted.as_json:
        print_json(diagnosis.as_dict())
    else:
        print_line(f"compiler  {diagnosis.compiler or 'none'}")
        print_line(f"database  {diagnosis.database}")
        print_line(f"engine    {diagnosis.engine}")
        for gpu in diagnosis.gpus:
            _print_gpu(gpu)
        if diagnosis.measures:
            for problem in diagnosis.problems:
                print_line(f"problem   {problem}")
            print_line(f"measures  {' and '.join(diagnosis.measures)}")
        else:
            print_line(": ".join(["This machine cannot measure", *diagnosis.problems[:1]]))
            for problem in diagnosis.problems[1:]:
                print_line(f"problem   {problem}")
    if not diagnosis.measures:
        raise typer.Exit(1)


def _print_gpu(gpu: "GpuDiagnosis") -> None:
    print_line(f"GPU {gpu.index}     {gpu.name}" + (f" (catalog: {gpu.gpu})" if gpu.gpu else ""))
    if (probe := gpu.probe) is not None and gpu.info is not None:
        figures = [
            ("driver", gpu.info.driver),
            ("idle", probe.idle_w and human(probe.idle_w, "W")),
            ("under load", probe.load_w and human(probe.load_w, "W")),
            ("SM clock", probe.sm_clock_hz and human(probe.sm_clock_hz, "Hz")),
            ("energy counter period", probe.tick_s and human(probe.tick_s, "s")),
            ("counter energy / power sensor", probe.ratio and f"{probe.ratio:.3f}"),
        ]
        print_line("          " + ", ".join(f"{name} {value}" for name, value in figures if value))
    for problem in gpu.problems:
        print_line(f"          {problem}")
