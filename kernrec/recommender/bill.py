"""The bill of a year of calls: energy, money and carbon dioxide of the GPU while it runs them.

Idle power, host, memory outside the card, power supplies and cooling are not included.
"""

from collections.abc import Sequence
from typing import Any

from kernrec.recommender.network_result import Total
from kernrec.util.light_dataclass import dataclass

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Tariff:
    """The calls of a year, and the price of a kilowatt-hour. No price is built in: all of them change."""

    calls: float
    energy_price: tuple[float, str] | None = None
    """Money for a kilowatt-hour, and the currency."""
    carbon_g_per_kwh: float | None = None
    """Grams of carbon dioxide for a kilowatt-hour."""


@dataclass(frozen=True)
class Bill:
    """A year of calls, or the difference between two."""

    name: str
    """The name of a total, or that it is saved against it."""
    energy_kwh: float
    cost: tuple[float, str] | None
    carbon_kg: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        cost, currency = self.cost or (None, None)
        return {
            "name": self.name,
            "energy_kwh": self.energy_kwh,
            "cost": cost,
            "currency": currency,
            "carbon_kg": self.carbon_kg,
        }


def bill(name: str, energy_j: float, tariff: Tariff) -> Bill:
    """A year of calls that take `energy_j` joules each."""
    energy_kwh = energy_j * tariff.calls / J_PER_KWH
    price, carbon = tariff.energy_price, tariff.carbon_g_per_kwh
    cost = None if price is None else (energy_kwh * price[0], price[1])
    return Bill(name, energy_kwh, cost, None if carbon is None else energy_kwh * carbon / 1e3)


def bills(totals: Sequence[Total], tariff: Tariff) -> list[Bill]:
    """A year with the first total, and what it saves against each other one, which may be less than nothing."""
    first, *others = totals
    saved = ((other.name, other.energy_j.value - first.energy_j.value) for other in others)
    return [
        bill(first.name, first.energy_j.value, tariff),
        *(bill(f"saved against {name}", energy_j, tariff) for name, energy_j in saved if energy_j),
    ]
