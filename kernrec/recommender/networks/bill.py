"""Yearly bill: energy, money and carbon dioxide of GPUs that run a network.

Idle power, host, memory outside the GPU, power supplies and cooling are not included.
"""

from collections.abc import Sequence
from dataclasses import replace

from kernrec.recommender.json_form import JsonForm
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
class Bill(JsonForm):
    """Bill for one year."""

    name: str
    """Name of the total."""
    energy_kwh: float
    cost: float | None
    currency: str | None
    carbon_kg: float | None
    versus: str | None = None
    """Name of the reference total; None if there is none."""
    more_kwh: float | None = None
    """Additional kilowatt-hours compared with the reference total; negative for a saving."""


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
        price, currency = tariff.energy_price or (None, None)
        cost = None if price is None else energy_kwh * price
        mass = None if tariff.carbon_g_per_kwh is None else energy_kwh * tariff.carbon_g_per_kwh / 1e3
        bill = Bill(total.name, energy_kwh, cost, currency, mass)
        if reference is not None and total is not reference:
            more = energy_kwh - gpus * reference.energy_j.value * passes / J_PER_KWH
            bill = replace(bill, versus=reference.name, more_kwh=more)
        rows.append(bill)
    return rows
