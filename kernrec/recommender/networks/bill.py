"""The bill of a year: energy, money and carbon dioxide of GPUs while they run a network.

Idle power, host, memory outside the GPU, power supplies and cooling are not included.
"""

from collections.abc import Sequence
from typing import Any

from kernrec.recommender.networks.result import Total
from kernrec.util.light_dataclass import dataclass

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Tariff:
    """How much a network runs in a year, and the price of a kilowatt-hour. No price is built in: all of them change."""

    calls: float | None = None
    """Passes a year; None if a number of GPUs says how many."""
    energy_price: tuple[float, str] | None = None
    """Money for a kilowatt-hour, and the currency."""
    carbon_g_per_kwh: float | None = None
    """Grams of carbon dioxide for a kilowatt-hour."""
    gpu_seconds: float = 0.0
    """Seconds in which GPUs run the network, of all GPUs together; used without `calls`."""

    def passes(self, total: Total, gpus: int) -> float:
        """Return the passes of a year, for a total of one of the GPUs that share each pass."""
        return self.gpu_seconds / gpus / total.latency_s.value if self.calls is None else self.calls


@dataclass(frozen=True)
class Bill:
    """A year of passes."""

    name: str
    """The name of a total."""
    energy_kwh: float
    cost: tuple[float, str] | None
    carbon_kg: float | None
    versus: str = ""
    """The name of the total that it is compared with; empty for none."""
    more_kwh: float = 0.0
    """Kilowatt-hours beyond those of that total; less than 0 if it takes less."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        cost, currency = self.cost or (None, None)
        return {
            "name": self.name,
            "energy_kwh": self.energy_kwh,
            "cost": cost,
            "currency": currency,
            "carbon_kg": self.carbon_kg,
            "versus": self.versus or None,
            "more_kwh": self.more_kwh if self.versus else None,
        }


def bills(totals: Sequence[Total], tariff: Tariff, reference: Total | None = None, gpus: int = 1) -> list[Bill]:
    """Return a year of each total, as many passes of each as of the reference.

    Args:
        totals: of one GPU.
        tariff: the passes, or the seconds in which the reference runs, and prices.
        reference: what the others are compared with; None: each total has its own passes.
        gpus: how many GPUs share each pass.
    """
    rows = []
    for total in totals:
        passes = tariff.passes(reference or total, gpus)
        energy_kwh = gpus * total.energy_j.value * passes / J_PER_KWH
        price, carbon = tariff.energy_price, tariff.carbon_g_per_kwh
        cost = None if price is None else (energy_kwh * price[0], price[1])
        mass = None if carbon is None else energy_kwh * carbon / 1e3
        if reference is None or total is reference:
            rows.append(Bill(total.name, energy_kwh, cost, mass))
        else:
            more = energy_kwh - gpus * reference.energy_j.value * passes / J_PER_KWH
            rows.append(Bill(total.name, energy_kwh, cost, mass, reference.name, more))
    return rows
