"""Several GPUs side by side on one network: time, energy, and the work that a watt or the money for a card buys."""

from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.recommender.network import NetworkAnswer, NetworkRequest, answer_network
from kernrec.recommender.recommender import Recommender
from kernrec.recommender.request import Query
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Work:
    """The yield of one pass through the network."""

    amount: float = 1.0
    unit: str = "call"
    """`call`, `token` or `image`."""


@dataclass(frozen=True)
class CardPrice:
    """The user's price of a card."""

    amount: float
    currency: str
    hourly: bool
    """Whether it is rented, and the amount is for an hour."""


@dataclass(frozen=True)
class ComparedGpu:
    """One GPU of a comparison."""

    answer: NetworkAnswer
    work: Work
    price: CardPrice | None = None

    @property
    def rate(self) -> float:
        """Calls, tokens or images a second."""
        return self.work.amount / self.answer.choice.latency_s.value

    @property
    def energy_j(self) -> float:
        """Joules of one call, token or image."""
        return self.answer.choice.energy_j.value / self.work.amount

    @property
    def energy_interval_j(self) -> tuple[float, float]:
        """Joules of one call, token or image, at the ends of the 90 % interval."""
        energy = self.answer.choice.energy_j
        return energy.low / self.work.amount, energy.high / self.work.amount

    @property
    def rate_per_watt(self) -> float:
        """Calls, tokens or images a second and watt; the inverse of `energy_j`."""
        return self.rate / self.answer.choice.power_w

    @property
    def rate_per_money(self) -> float | None:
        """Of a bought card: calls, tokens or images a second for a thousand units of the currency."""
        price = self.price
        return None if price is None or price.hourly else self.rate / price.amount * 1e3

    @property
    def money_per_million(self) -> float | None:
        """Of a rented card that is always busy: money for a million calls, tokens or images."""
        price = self.price
        return None if price is None or not price.hourly else price.amount / 3600.0 / self.rate * 1e6

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; keys carry their unit."""
        answer = self.answer
        return {
            "gpu": answer.gpu.name,
            "power_limit_w": answer.query.point.limit_w(answer.gpu),
            **answer.choice.as_dict(),
            "inputs": answer.query.inputs,
            "dtypes": list(answer.dtypes),
            "per": self.work.unit,
            "rate_per_s": self.rate,
            "energy_per_unit_j": self.energy_j,
            "rate_per_watt": self.rate_per_watt,
            "price": None if self.price is None else self.price.amount,
            "currency": None if self.price is None else self.price.currency,
            "rate_per_thousand": self.rate_per_money,
            "price_per_million": self.money_per_million,
            "left_out": list(answer.left_out),
        }


def compare_gpus(
    recommender: Recommender,
    gpus: Sequence[GPU],
    wanted: NetworkRequest,
    query: Query,
    work: Work | None = None,
    prices: Mapping[str, CardPrice] | None = None,
) -> tuple[list[ComparedGpu], list[str]]:
    """One network on several GPUs (at least one) in this order, and why some of them are missing.

    Args:
        work: the yield of one pass; a call by default.
        prices: by name of the GPU.

    Raises:
        UsageError: a name is unknown, or a value impossible for all GPUs.
        KernrecError: none of the GPUs can run any layer.
    """
    rows, missing, error = [], [], None
    for gpu in gpus:
        try:
            answer = answer_network(recommender, gpu, wanted, query)
        except KernrecError as problem:
            error = error or problem
            missing.append(f"{gpu.name} is left out: {problem}")
            continue
        if answer.left_out and not any(layer.best for layer in answer.layers):
            missing.append(
                f"{gpu.name} is left out: {len(answer.left_out)} layers have neither a kernel nor a line there"
            )
            error = error or KernrecError(f"{gpu.name}: {answer.left_out[0]}")
            continue
        rows.append(ComparedGpu(answer, work or Work(), (prices or {}).get(gpu.name)))
    if not rows:
        assert error is not None
        raise error
    if len({row.answer.left_out for row in rows}) > 1:
        for row in rows:
            if row.answer.left_out:
                missing.append(f"{row.answer.gpu.name}: its total lacks {'; '.join(row.answer.left_out)}")
    return rows, missing


_FACTOR = 1.5
"""A slowdown from which on it is said as a factor."""


def verdict(rows: Sequence[ComparedGpu]) -> str:
    """Which GPU is the fastest, and which takes the least energy, as a sentence."""
    fastest = min(rows, key=lambda row: row.answer.choice.latency_s.value).answer
    frugal = min(rows, key=lambda row: row.answer.choice.energy_j.value).answer
    if fastest is frugal:
        return f"{fastest.gpu.title} is expected to be the fastest and to take the least energy."
    slower, less = frugal.choice.versus(fastest.choice)
    longer = f"{1.0 + slower:.2g} times as long" if slower >= _FACTOR - 1.0 else f"{slower * 100:.2g} % longer"
    return (
        f"{fastest.gpu.title} is expected to be the fastest; {frugal.gpu.title} to take {-less * 100:.2g} % less energy"
        f" and {longer}."
    )
