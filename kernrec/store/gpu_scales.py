"""Estimate how each contributor's GPU compares with other GPUs of its model.

A throttled laptop ranks configs correctly, but all its times are too long. So `db/schema/views.sql` divides a GPU's
costs by a scale before it combines rows of several people.

An item is a config on a problem, at one power limit and clock setting. The reference cost of an item is the median over
at least three contributors. The scale of a GPU is the median of (cost / reference cost) over its items. If
the ratios differ between items, the scale is moved towards 1.

If there are only two contributors, no GPU is scaled, and answers show how far the two differ.
"""

from typing import TYPE_CHECKING

from kernrec.store.schema import with_derived

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LEAST_CONTRIBUTORS = 3
"""Minimum number of contributors to an item. If two disagree, nobody knows which GPU is unusual."""
LEAST_CONFIGS = 3
"""Minimum number of configs and problems (items) that must be measured on a GPU and on other people's GPUs."""

_RAN_WELL = "outcome = 'ok' AND mig IS DISTINCT FROM true AND replayed IS DISTINCT FROM true"


def scales_query(contributors: int = LEAST_CONTRIBUTORS) -> str:
    """Return an SQL query for each GPU's typical cost relative to other GPUs of its model.

    The query compares configs on problems that at least `contributors` people measured.
    """
    same = (
        "kernel, kernel_hash, config_id, problem_id, power_limit_w, locked_sm_clock_hz, locked_memory_clock_hz,"
        " protocol_version"
    )
    return f"""
        WITH compared AS MATERIALIZED (
            SELECT gpu, hash({same}) AS item, contributor, coalesce(device_uuid_hash, '') AS board,
                   ln(latency_s) AS latency, ln(energy_j) AS energy
            FROM sourced_rows WHERE {_RAN_WELL}
        ), several AS MATERIALIZED (
            SELECT gpu, item FROM compared GROUP BY gpu, item HAVING min(contributor) <> max(contributor)
        ), by_board AS MATERIALIZED (
            SELECT gpu, item, contributor, board, median(latency) AS latency, median(energy) AS energy
            FROM compared SEMI JOIN several USING (gpu, item) GROUP BY ALL
        ), by_contributor AS (
            SELECT gpu, item, contributor, median(latency) AS latency, median(energy) AS energy
            FROM by_board GROUP BY ALL
        ), reference AS (
            SELECT gpu, item, median(latency) AS latency,
                   CASE WHEN count(energy) >= {contributors} THEN median(energy) END AS energy
            FROM by_contributor GROUP BY ALL HAVING count(*) >= {contributors}
        ), ratio AS (
            SELECT gpu, contributor, board, by_board.latency - reference.latency AS latency,
                   by_board.energy - reference.energy AS energy
            FROM by_board JOIN reference USING (gpu, item)
        ), scale AS (
            SELECT gpu, contributor, board, count(*) AS configs, median(latency) AS latency,
                   mad(latency) AS latency_mad,
                   CASE WHEN count(energy) >= {LEAST_CONFIGS} THEN median(energy) END AS energy,
                   mad(energy) AS energy_mad
            FROM ratio GROUP BY ALL HAVING count(*) >= {LEAST_CONFIGS}
        )
        SELECT gpu, contributor, board,
               exp(sign(latency) * greatest(abs(latency) - latency_mad, 0)) AS latency_scale,
               exp(sign(energy) * greatest(abs(energy) - energy_mad, 0)) AS energy_scale,
               exp(latency) AS latency_ratio, exp(energy) AS energy_ratio, configs
        FROM scale ORDER BY gpu, contributor, board
    """


def scale_statements() -> list[str]:
    scales = f"FROM ({scales_query()})"
    estimate = with_derived("sourced_rows", scales)
    return ["DELETE FROM db.gpu_scale", f"INSERT INTO db.gpu_scale BY NAME {estimate}"]


def scales_for_training() -> str:
    """Return an SQL subquery with scales for training a model, from configs that at least two people measured.

    Without scales, a model would mistake a difference between two GPUs for a difference between configs. Scales are
    relative to the user's own GPUs, or to the median over the contributors if the user has measured nothing.
    """
    scales = [
        f"{name} / coalesce(median({name}) FILTER (WHERE contributor = 'own') OVER (PARTITION BY gpu), 1) AS {name}"
        for name in ("latency_scale", "energy_scale")
    ]
    return f"(SELECT gpu, contributor, board, {', '.join(scales)} FROM ({scales_query(contributors=2)})) AS gpu_scale"


def update_scales(connection: "DuckDBPyConnection") -> None:
    """Update the table `db.gpu_scale` in the caller's transaction."""
    ((signers,),) = connection.execute("SELECT count(DISTINCT signer) FROM db.merged").fetchall()
    clear, estimate = scale_statements()
    connection.execute(clear)
    if signers + 1 >= LEAST_CONTRIBUTORS:  # Count the user, too.
        connection.execute(estimate)
