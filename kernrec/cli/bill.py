"""`--gpus` and `--bill`: compute the yearly cost of a network from prices of energy and GPUs."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import quantity
from kernrec.cli.options import NETWORK, Options, option
from kernrec.errors import UsageError, unknown

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.recommender.networks.bill import Tariff
    from kernrec.recommender.networks.compare import CardPrice

_FLEET = ("gpus", "hours", "utilization")
"""Options besides --bill that determine the work of a year."""
PARTS = (*_FLEET, "calls", "energy", "carbon")
_EXAMPLE = "energy=0.25EUR/kWh,carbon=380g/kWh"
_HOURS = 8760.0
_PER_GPU = {"": 1.0, "h": 1.0, "hour": 1.0}
"""Units of a GPU's price: bought, or rented by the hour."""


class Billed(Options):
    """Options for the yearly bill."""

    gpus: Annotated[str | None, option("GPUs that run it, for a year's bill.", "--gpus", panel=NETWORK)] = None
    hours: Annotated[str | None, option("Hours of the year, of 8760.", "--hours", panel=NETWORK)] = None
    utilization: Annotated[str | None, option("Share of these hours: 60%.", "--utilization", panel=NETWORK)] = None
    bill: Annotated[
        list[str] | None,
        option("Prices: energy=0.2EUR/kWh,h200=3EUR/h, ...", panel=NETWORK, metavar="PARTS"),
    ] = None

    @cached_property
    def parts(self) -> Mapping[str, str]:
        """Return the parts of --bill by name, with --gpus, --hours and --utilization."""
        parts = {name: value for name in _FLEET if (value := getattr(self, name)) is not None}
        for part in ",".join(self.bill or ()).split(",") if self.bill else ():
            name, equals, value = (text.strip() for text in part.partition("="))
            if not (name and equals and value):
                raise UsageError(f"--bill {part!r:.60}: expected parts such as {_EXAMPLE}")
            if name in _FLEET:
                raise UsageError(f"--bill {part!r:.60}: use --{name} {value:.40}")
            if name in parts:
                raise UsageError(f"--bill has {name} twice")
            parts[name] = value
        return parts

    @property
    def tariff(self) -> "Tariff | None":
        """Return a year's work and prices; None without --bill and related options. Raises `UsageError` if a value is
        impossible, or a part lacks another part that it needs.
        """
        parts = {name: self.parts[name] for name in PARTS if name in self.parts}
        if not parts:
            return None
        if {"calls", "gpus"} <= parts.keys():
            raise UsageError("--bill calls and --gpus were both given; give one of them")
        if "gpus" not in parts and (alone := next((name for name in ("hours", "utilization") if name in parts), None)):
            raise UsageError(f"--{alone} needs --gpus, the number of GPUs, such as --gpus 200")
        if not {"calls", "gpus"} & parts.keys():
            needed = "--gpus (such as --gpus 200) or the calls per year (such as calls=1e9)"
            raise UsageError(f"--bill {next(iter(parts))} needs {needed}")
        from kernrec.recommender.networks.bill import Tariff

        return Tariff(
            quantity.calls("--bill calls", parts["calls"]) if "calls" in parts else None,
            quantity.energy_price("--bill energy", parts["energy"]) if "energy" in parts else None,
            quantity.carbon("--bill carbon", parts["carbon"]) if "carbon" in parts else None,
            _gpu_seconds(parts),
        )

    def prices(self, gpus: "Sequence[GPU]") -> "dict[str, CardPrice]":
        """Return the prices of GPUs by name. All prices must have one currency, and all GPUs must be bought, or all
        rented.

        Args:
            gpus: The GPUs to compare.
        """
        stated = {name: text for name, text in self.parts.items() if name not in PARTS}
        if not stated:
            return {}
        from kernrec.gpu import find_gpu
        from kernrec.gpu.find import UnknownGPU
        from kernrec.recommender.networks.compare import CardPrice

        prices: dict[str, CardPrice] = {}
        for name, text in stated.items():
            try:
                card = find_gpu(name)
            except UnknownGPU:
                raise unknown("part of --bill", name, [*PARTS[len(_FLEET) :], *(gpu.name for gpu in gpus)]) from None
            if card.name not in {gpu.name for gpu in gpus}:
                raise UsageError(f"--bill {name}={text:.40}: {card.name} is not one of the compared GPUs")
            value, currency, unit = quantity.price(
                f"--bill {name}", text, _PER_GPU, "h200=30000EUR or, rented by the hour, h200=3EUR/h"
            )
            if value <= 0.0:
                raise UsageError(f"--bill {name}={text:.40}: expected a price of more than 0")
            prices[card.name] = CardPrice(value, currency, bool(unit))
        if len({(price.currency, price.hourly) for price in prices.values()}) > 1:
            raise UsageError("--bill: expected one currency, and all GPUs bought or all rented by the hour")
        return prices


def _gpu_seconds(parts: Mapping[str, str]) -> float:
    gpus = quantity.number("--gpus", parts.get("gpus", "0"))
    hours = quantity.number("--hours", parts["hours"]) if "hours" in parts else _HOURS
    share = quantity.fraction("--utilization", parts["utilization"]) if "utilization" in parts else 1.0
    for name, value, most, expected in (
        ("gpus", gpus if "gpus" in parts and gpus.is_integer() else 1.0 if "gpus" not in parts else 0.0, 1e9,
         "a whole number from 1"),
        ("hours", hours, 8784.0, "more than 0 and at most 8784, the hours of a year"),
        ("utilization", share, 1.0, "more than 0 % and at most 100 %"),
    ):  # fmt: skip
        if not 0 < value <= most:
            raise UsageError(f"--{name} {parts.get(name, value)}: {expected} is expected")
    return gpus * hours * 3600.0 * share
