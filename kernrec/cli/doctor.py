"""`kernrec doctor`: what this machine can measure and what it cannot."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec import paths
from kernrec.cli.quantity import human

if TYPE_CHECKING:
    from kernrec.measure.doctor import CardDiagnosis


def doctor(
    db: Annotated[Path | None, typer.Option(help="Database to look at; yours by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can measure: compiler, GPUs, their sensors (probed for ten seconds each), database.

    The exit status is 1 when nothing can be measured here.
    """
    from kernrec.measure.doctor import diagnose

    found = diagnose(db or paths.user_database())
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print(f"compiler  {found.compiler or 'none'}")
        print(f"database  {found.database}")
        for card in found.cards:
            _print_card(card)
        for problem in found.problems:
            print(f"problem   {problem}")
        print(f"measures  {' and '.join(found.measures) or 'nothing here'}")
    if not found.measures:
        raise typer.Exit(1)


def _print_card(card: "CardDiagnosis") -> None:
    print(f"GPU {card.index}     {card.name}" + (f" ({card.gpu} of the catalog)" if card.gpu else ""))
    if (probe := card.probe) is not None and card.info is not None:
        figures = [
            ("driver", card.info.driver),
            ("idle", probe.idle_w and human(probe.idle_w, "W")),
            ("under load", probe.load_w and human(probe.load_w, "W")),
            ("SM clock", probe.sm_clock_hz and human(probe.sm_clock_hz, "Hz")),
            ("energy counter's tick", probe.tick_s and human(probe.tick_s, "s")),
            ("its lag", probe.lag_s is not None and human(probe.lag_s, "s")),
            ("counter over sensor", probe.ratio and f"{probe.ratio:.3f}"),
            ("a look at the sensors", human(probe.call_s, "s")),
        ]
        print("          " + ", ".join(f"{name} {value}" for name, value in figures if value))
    for problem in card.problems:
        print(f"          {problem}")
