"""Read recorded launches of serving backends. The readers of attention and of mixtures of experts use this module."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from library_training.table import Recording

from evidence.recordings.files import SERVING_DTYPES, named, power_of
from evidence.recordings.vendor import BACKENDS, SERVING, SYSTEMS, columns_of, recording
from kernrec.model.baselines.bound import Timing, features_of, kind_of
from kernrec.model.baselines.recorded_set import RecordedSet

Array = np.ndarray


def fastest(
    path: Path, sizes: Sequence[str], condition: str = "true", otherwise: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """Return the columns of a file. If a backend ran a problem with several kernels, keep only the fastest.

    Args:
        path: Path of a Parquet file.
        sizes: Columns that distinguish problems, besides system, framework and dtype. An SQL expression may rename a
            column.
        condition: SQL condition that selects rows.
        otherwise: SQL expressions for columns that the file lacks or names differently, keyed by column name.

    Returns:
        Columns `gpu`, `stack`, `dtype` and `version` with kernrec's names, the sizes, `latency_s` and `power_w`.
    """
    other = {"power_w": "power_w", **(otherwise or {})}
    spelled = (("gpu", "system", SYSTEMS), ("stack", "framework", BACKENDS), ("dtype", "dtype", SERVING_DTYPES))
    raw = tuple(other.get(name, name) for _, name, _ in spelled)
    names = (
        *(f"{text} AS recorded_{name}" for text, (_, name, _) in zip(raw, spelled, strict=True)),
        *(f"{named(text, words)} AS {own}" for text, (own, _, words) in zip(raw, spelled, strict=True)),
        "max(version) AS version", *sizes, "min(latency_s) AS latency_s",
        f"arg_min(coalesce({power_of(path.stem, other['power_w'])}, 0), latency_s) AS power_w",
    )  # fmt: skip
    columns = columns_of(path, names, f"({condition}) AND {raw[0]} IN {tuple(SYSTEMS)} GROUP BY ALL")
    return {**columns, "power_w": np.where(columns["power_w"] > 0, columns["power_w"], np.nan)}


def joined_columns(*parts: Mapping[str, Array]) -> dict[str, Array]:
    """Concatenate the rows of all parts. Keep the columns of the first part."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def recording_of(
    name: str, op: str, case: str, columns: Mapping[str, Array], layouts: tuple[str, ...], alike: tuple[str, ...],
    alike_width: float, timing: Timing, grid: tuple[str, ...], recorded: str,
) -> Recording:  # fmt: skip
    """Create a recording of a set from columns that `fastest` returned. Backends, versions, data types and kinds are
    taken from the columns. The other arguments are fields of `RecordedSet`."""
    versions: dict[str, dict[str, str | None]] = {}
    for backend, gpu in sorted(set(zip(columns["stack"].tolist(), columns["gpu"].tolist(), strict=True))):
        rows = (columns["stack"] == backend) & (columns["gpu"] == gpu)
        versions.setdefault(backend, {})[gpu] = max(columns["version"][rows].tolist())
    dims = {dim: columns[dim].astype(np.int64) for dim in features_of(op).DIMS}
    dtypes = tuple(sorted(set(columns["dtype"].tolist())))
    about = RecordedSet(
        name, op, case, versions, dtypes, layouts, alike, alike_width, timing, grid, {}, (),
        SERVING | {"library": "as called by the stacks", "recorded": recorded}, _kinds(op, columns, dims),
    )  # fmt: skip
    return recording(about, columns)


def _kinds(op: str, columns: Mapping[str, Array], dims: Mapping[str, Array]) -> dict[str, dict[str, tuple[str, ...]]]:
    cached = dims.get("kv_dtype", np.zeros(len(columns["gpu"]), dtype=np.int64))
    rows = set(zip(*(columns[name].tolist() for name in ("stack", "gpu", "dtype")), cached.tolist(), strict=True))
    kinds: dict[str, dict[str, tuple[str, ...]]] = {}
    for backend, gpu, dtype, kv_dtype in sorted(rows):
        gpus = kinds.setdefault(backend, {})
        gpus[gpu] = (*gpus.get(gpu, ()), kind_of(op, dtype, {"kv_dtype": kv_dtype}))
    return kinds
