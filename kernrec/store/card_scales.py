"""The scale of each contributor's card: its costs over those of its kind, from configs that several of them measured.

A throttled laptop, or a board with another power limit, says which of two configs is better, not how long they take. So
before rows of others are combined (`db/schema/views.sql`), each card's are divided by its scale.

    item    what can be compared: one config on one problem, at one power limit and clock, by one protocol
    yard    of an item: the median over contributors, of each the median over his cards; with three of them or more
    ratio   of a card: the median over its items of its cost over the yard
    scale   the ratio, nearer to 1 by how much the items differ among themselves: a card whose memory is like others'
            and whose cores are not has no one scale

With two contributors nobody can say whose card is off: both stay as they are, and answers show how far they are apart.
The fixed part (`kernrec.kernel.fixed_part`), which every card runs, is five such items.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernrec.store.schema import with_derived

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LEAST_CONTRIBUTORS = 3
"""Of an item, for a yard: of two, neither is the odd one."""
LEAST_CONFIGS = 3
"""Items that a card shares with others, for a scale."""
UNLIKE = 0.1
"""A card whose costs differ by more from those of its kind is named."""

_RAN_WELL = "outcome = 'ok' AND mig IS DISTINCT FROM true AND replayed IS DISTINCT FROM true"
COLUMNS = "gpu, contributor, card, latency_scale, energy_scale, latency_ratio, energy_ratio, configs"


@dataclass(frozen=True)
class CardScale:
    """How the costs of a contributor's card compare with those of others on the same kind of card."""

    gpu: str
    contributor: str
    """`own`, a public key, or empty: unsigned."""
    card: str
    """Which of his cards, as a hash; empty where its rows do not say."""
    latency_scale: float
    """By which its latencies are divided."""
    energy_scale: float | None
    latency_ratio: float
    """Its latencies over those of its kind, the median."""
    energy_ratio: float | None
    configs: int
    """That were compared."""


def scales_query(rows: str, part: str = "true", contributors: int = LEAST_CONTRIBUTORS) -> str:
    """The scales of cards in SQL, with the columns `COLUMNS`.

    Args:
        rows: a relation with `gpu`, `contributor`, `kernel`, `kernel_hash`, `config_id`, `problem_id`, the limits and
            clocks, `protocol_version`, `device_uuid_hash`, `latency_s` and `energy_j`, of measurements that ran well.
        part: a condition on these.
        contributors: least number of an item.
    """
    same = (
        "kernel, kernel_hash, config_id, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,"
        " protocol_version"
    )
    return f"""
        WITH compared AS MATERIALIZED (
            SELECT gpu, hash({same}) AS item, contributor, coalesce(device_uuid_hash, '') AS card,
                   ln(latency_s) AS latency, ln(energy_j) AS energy
            FROM {rows} WHERE {part}
        ), several AS MATERIALIZED (
            SELECT gpu, item FROM compared GROUP BY gpu, item HAVING min(contributor) <> max(contributor)
        ), by_card AS MATERIALIZED (
            SELECT gpu, item, contributor, card, median(latency) AS latency, median(energy) AS energy
            FROM compared SEMI JOIN several USING (gpu, item) GROUP BY ALL
        ), by_contributor AS (
            SELECT gpu, item, contributor, median(latency) AS latency, median(energy) AS energy
            FROM by_card GROUP BY ALL
        ), yard AS (
            SELECT gpu, item, median(latency) AS latency,
                   CASE WHEN count(energy) >= {contributors} THEN median(energy) END AS energy
            FROM by_contributor GROUP BY ALL HAVING count(*) >= {contributors}
        ), ratio AS (
            SELECT gpu, contributor, card, by_card.latency - yard.latency AS latency,
                   by_card.energy - yard.energy AS energy
            FROM by_card JOIN yard USING (gpu, item)
        ), scale AS (
            SELECT gpu, contributor, card, count(*) AS configs, median(latency) AS latency, mad(latency) AS latency_mad,
                   CASE WHEN count(energy) >= {LEAST_CONFIGS} THEN median(energy) END AS energy,
                   mad(energy) AS energy_mad
            FROM ratio GROUP BY ALL HAVING count(*) >= {LEAST_CONFIGS}
        )
        SELECT gpu, contributor, card,
               exp(sign(latency) * greatest(abs(latency) - latency_mad, 0)) AS latency_scale,
               exp(sign(energy) * greatest(abs(energy) - energy_mad, 0)) AS energy_scale,
               exp(latency) AS latency_ratio, exp(energy) AS energy_ratio, configs
        FROM scale ORDER BY gpu, contributor, card
    """


def scale_statements() -> list[str]:
    """Return the statements that estimate the scales of a database anew, after rows of others came or went."""
    scales = f"FROM ({scales_query('sourced_rows', _RAN_WELL)})"
    estimate = with_derived("sourced_rows", scales)
    return ["DELETE FROM db.card_scale", f"INSERT INTO db.card_scale BY NAME {estimate}"]


def scales_among_few() -> str:
    """A relation in place of `card_scale` for whom it is enough that rows of several cards fit together.

    Of two contributors neither is the odd one, so answers leave both as they are; a model that learns from rows of both
    would take the difference of the cards for one of the configs. Here the scale is that to the median of all, however
    few; where some rows are the user's own, whose cards are on no other scale, that to his.
    """
    scales = [
        f"{name} / coalesce(median({name}) FILTER (WHERE contributor = 'own') OVER (PARTITION BY gpu), 1) AS {name}"
        for name in ("latency_scale", "energy_scale")
    ]
    return (
        f"(SELECT gpu, contributor, card, {', '.join(scales)}"
        f" FROM ({scales_query('sourced_rows', _RAN_WELL, contributors=2)})) AS card_scale"
    )


def update_scales(connection: "DuckDBPyConnection") -> None:
    """Do so for a database of one's own and merged rows, within the caller's transaction; where there are too few
    contributors for a scale, no row is read."""
    ((signers,),) = connection.execute("SELECT count(DISTINCT signer) FROM db.merged").fetchall()
    clear, estimate = scale_statements()
    connection.execute(clear)
    if signers + 1 >= LEAST_CONTRIBUTORS:  # and the user
        connection.execute(estimate)


def shown(scale: CardScale, whose: str) -> str | None:
    """A line about a card whose costs are not as those of its kind; None about one whose are.

    whose: the subject of the line.
    """
    ratios: Mapping[str, float | None] = {"latencies": scale.latency_ratio, "energies": scale.energy_ratio}
    apart = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio is not None and unlike(ratio)]
    if not apart:
        return None
    return (
        f"{whose}: {' and '.join(apart)} times those of others on the same GPU ({scale.configs} configs);"
        f" its rows count divided by {scale.latency_scale:.2f}"
        + (f" and {scale.energy_scale:.2f}" if scale.energy_scale is not None else "")
    )


def unlike(ratio: float) -> bool:
    """Whether a ratio of costs is worth a line."""
    return not 1.0 / (1.0 + UNLIKE) <= ratio <= 1.0 + UNLIKE
