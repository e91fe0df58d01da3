"""`kernrec doctor`: what this machine can measure and what it cannot."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.util.human import human

if TYPE_CHECKING:
    from kernrec.measure.doctor import CardDiagnosis


def doctor(
    db: Annotated[Path | None, typer.Option(help="Database to check. Default: your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine can measure: compiler, GPUs, their sensors (each is probed for ten seconds), database.

    The exit status is 1 if nothing can be measured.
    """
    from kernrec.measure.doctor import diagnose

    diagnosis = diagnose(db or paths.user_database())
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        print(f"compiler  {diagnosis.compiler or 'none'}")
        print(f"database  {diagnosis.database}")
        for card in diagnosis.cards:
            _print_card(card)
        for problem in diagnosis.problems:
            print(f"problem   {problem}")
        print(f"measures  {' and '.join(diagnosis.measures) or 'nothing here'}")
    if not diagnosis.measures:
        raise typer.Exit(1)


def _print_card(card: "CardDiagnosis") -> None:
    print(f"GPU {card.index}     {card.name}" + (f" (catalog: {card.gpu})" if card.gpu else ""))
    if (probe := card.probe) is not None and card.info is not None:
        figures = [
            ("driver", card.info.driver),
            ("idle", probe.idle_w and human(probe.idle_w, "W")),
            ("under load", probe.load_w and human(probe.load_w, "W")),
            ("SM clock", probe.sm_clock_hz and human(probe.sm_clock_hz, "Hz")),
            ("energy counter period", probe.tick_s and human(probe.tick_s, "s")),
            ("energy counter lag", probe.lag_s is not None and human(probe.lag_s, "s")),
            ("counter energy / power sensor", probe.ratio and f"{probe.ratio:.3f}"),
            ("sensor read time", human(probe.call_s, "s")),
        ]
        print("          " + ", ".join(f"{name} {value}" for name, value in figures if value))
    for problem in card.problems:
        print(f"          {problem}")
