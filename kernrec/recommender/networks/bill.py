"""Yearly bill: energy, money and carbon dioxide of GPUs that run a network.

Idle power, host, memory outside the GPU, power supplies and cooling are not included.
"""

from collections.abc import Sequence
from typing import Any

from kernrec.recommender.networks.result import Total
from kernrec.util.light_dataclass import dataclass

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Tariff:
    """Yearly use of a network, and prices per kilowatt-hour. Prices have no defaults, because they change."""

    calls: float | None = None
    """Passes per year; None if `gpu_seconds` determines them."""
    energy_price: tuple[float, str] | None = None
    """Money per kilowatt-hour, and the currency."""
    carbon_g_per_kwh: float | None = None
    """Grams of carbon dioxide per kilowatt-hour."""
    gpu_seconds: float = 0.0
    """Seconds per year in which GPUs run the network, summed over all GPUs; used without `calls`."""

    def passes(self, total: Total, gpus: int) -> float:
        """Return the passes per year. `total` is the cost of one GPU, and `gpus` share each pass."""
        return self.gpu_seconds / gpus / total.latency_s.value if self.calls is None else self.calls


@dataclass(frozen=True)
class Bill:
    """Bill for one year."""

    name: str
    """Name of the total."""
    energy_kwh: float
    cost: tuple[float, str] | None
    carbon_kg: float | None
    versus: str = ""
    """Name of the reference total; empty for none."""
    more_kwh: float = 0.0
    """Additional kilowatt-hours compared with the reference total; negative for a saving."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys contain the unit."""
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
    """Return the yearly bill of each total, for the reference's number of passes.

    Args:
        totals: totals of one GPU.
        tariff: number of passes or running time of the reference, and prices.
        reference: total to compare with; None to use each total's own number of passes.
        gpus: number of GPUs that share each pass.
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
