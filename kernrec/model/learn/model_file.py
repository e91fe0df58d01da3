"""Models on disk: XGBoost's trees as UBJSON, one file a head, and a JSON card that says what they are.

    models/<name>.json                  the card: features, extent, intervals, scores, training data, versions, SHA-256
                                        of the trees
    models/<name>.latency.<hash>.ubj    trees, and the same for power
    models/<name>.latency.<hash>.trees  the same trees laid out for queries, which load at once

Nothing is unpickled. The card is written last and all files appear whole, so a reader sees the old model or the new
one. A file that does not fit is refused in one line that says what differs; trees laid out that are missing, damaged or
of other trees are laid out anew.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError
from kernrec.model.learn import features
from kernrec.model.learn.conformal import Extent, Interval
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.model import HEADS, Model
from kernrec.util.atomic_write import write_whole
from kernrec.util.optional import import_optional
from kernrec.version import __version__

FORMAT = 2
LAID_OUT = ".trees"
_MOST_BYTES = 64 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_@.+-]*")


def save(model: Model, folder: Path, name: str, training: Mapping[str, Any]) -> Path:
    """Write a model; gives the card's path. training: where its rows came from, kept in the card as it is."""
    _check_name(name)
    xgboost = import_optional("xgboost", "training a model", "train")

    heads = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for head, trees in model.trees.items():
            # The content is in the name, so an old card never meets new trees.
            digest = hashlib.sha256(trees).hexdigest()
            file = f"{name}.{head}.{digest[:12]}.ubj"
            write_whole(folder / file, trees, shared=True)
            laid_out = (model.forests.get(head) or Forest.parse(trees, file)).packed(trees)
            write_whole((folder / file).with_suffix(LAID_OUT), laid_out, shared=True)
            heads[head] = {"file": file, "sha256": digest}
        card = {
            "format": FORMAT,
            "name": name,
            "features": {"version": features.VERSION, "columns": list(model.columns)},
            "heads": heads,
            "extent": {
                key: [None if np.isinf(v) else float(v) for v in getattr(model.extent, key)]
                for key in ("low", "high", "spread")
            },
            "intervals": {q: {gpu: vars(i) for gpu, i in found.items()} for q, found in model.intervals.items()},
            "scores": dict(model.scores),
            "gpus": list(model.gpus),
            "kernels": dict(model.kernels),
            "ops": list(model.ops),
            "helps_new_kernels": model.helps_new_kernels,
            "training": dict(training),
            "versions": {"kernrec": __version__, "xgboost": xgboost.__version__},
        }
        path = folder / f"{name}.json"
        write_whole(path, (json.dumps(card, indent=1, sort_keys=True) + "\n").encode(), shared=True)
        kept = {Path(head["file"]).stem for head in heads.values()}
        for old in (*folder.glob(f"{name}.*.ubj"), *folder.glob(f"{name}.*{LAID_OUT}")):
            if old.stem not in kept and old.name.split(".")[-3] in HEADS:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise KernrecError(f"cannot write the model {name} to {folder}: {error.strerror or error}") from None
    return path


def load(path: Path) -> tuple[Model, dict[str, Any]]:
    """(model, card) of a card's path; `UsageError` where it does not fit this kernrec or is damaged."""
    card = _json(path)
    if "format" in card and card["format"] != FORMAT:
        raise UsageError(
            f"{path} is a model of format {card['format']!r:.40}; this kernrec reads {FORMAT}: train again"
        )
    _check_whole(path, card)
    try:
        texts = [*card["gpus"], *card["ops"], *card["kernels"], *card["kernels"].values()]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{path} is no model card of kernrec's: gpus, kernels and ops hold texts alone")
        version, columns = card["features"]["version"], tuple(card["features"]["columns"])
        if version != features.VERSION:
            raise UsageError(
                f"{path} was trained on features version {version!r}; this kernrec has {features.VERSION}: train again"
            )
        known = set(features.names())
        strange = [
            c for c in columns if c not in known and not str(c).startswith((features.TUNABLE, features.ALIGNMENT))
        ]
        if strange:
            raise UsageError(f"{path} uses a feature that this kernrec does not have: {strange[0]!s:.60}")
        trees, forests = {}, {}
        for head, entry in card["heads"].items():
            if head not in HEADS:
                raise UsageError(f"{path} has a head {head!r:.40}; known: {', '.join(HEADS)}")
            trees[head] = _trees(path, entry)
            forests[head] = _forest(path.parent / entry["file"], trees[head])
            if forests[head].features != len(columns):
                raise UsageError(
                    f"{path}: the {head} trees take {forests[head].features} features, the card names {len(columns)}"
                )
        if "latency" not in forests:
            raise UsageError(f"{path} has no latency head")
        parts = {
            key: np.array([np.inf if v is None else float(v) for v in card["extent"][key]])
            for key in ("low", "high", "spread")
        }
        if any(len(part) != len(columns) for part in parts.values()):
            raise UsageError(f"{path}: the extent does not have one number a feature")
        model = Model(
            columns,
            trees,
            Extent(**parts, part=features.parts(columns)),
            {q: {key: _interval(i) for key, i in found.items()} for q, found in card["intervals"].items()},
            dict(card["scores"]),
            tuple(card["gpus"]),
            dict(card["kernels"]),
            tuple(card["ops"]),
            bool(card["helps_new_kernels"]),
            forests,
        )
    except KeyError as error:
        raise UsageError(f"{path} is no model card of kernrec's: {error.args[0]!r:.60} is missing") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path} is no model card of kernrec's: {_first_line(error)}") from None
    return model, card


_FIELDS: Mapping[str, type] = {
    "format": int, "name": str, "features": dict, "features.columns": list, "features.version": int, "heads": dict,
    "extent": dict, "extent.low": list, "extent.high": list, "extent.spread": list, "intervals": dict, "scores": dict,
    "gpus": list, "kernels": dict, "ops": list, "helps_new_kernels": bool, "versions": dict, "training": dict,
    "training.measurements": int, "training.mark": str, "training.rows": int, "training.problems": list,
    "training.data_sha256": str, "training.prior": dict, "training.prior.probe": list,
    "training.prior.calibrations": dict,
}  # fmt: skip
"""What a card must say, by the path of the part that says it, outer parts first."""
_JSON = {int: "a number", str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def _check_whole(path: Path, card: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a card that lacks a field, or in which it is something else, naming it."""
    for field, kind in _FIELDS.items():
        part: Any = card
        *above, last = field.split(".")
        for step in above:
            part = part[step]
        if last not in part:
            raise UsageError(f"{path} is no model card of kernrec's, or is not whole: {field} is missing")
        if not isinstance(part[last], kind):
            raise UsageError(
                f"{path} is no model card of kernrec's: {field} is {part[last]!r:.40}, {_JSON[kind]} is expected"
            )


def _interval(entry: Mapping[str, Any]) -> Interval:
    found = Interval(float(entry["width"]), int(entry["groups"]), str(entry["kind"]), float(entry["level"]))
    if not (0.0 <= found.width < np.inf and found.groups >= 0 and 0.0 < found.level < 1.0):
        raise ValueError(f"an interval is {dict(entry)!r:.80}")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def _forest(path: Path, trees: bytes) -> Forest:
    """The trees of a UBJSON file, from what was laid out beside it where that is of them."""
    try:
        return Forest.unpacked(path.with_suffix(LAID_OUT).read_bytes(), trees)
    except (OSError, ValueError):
        return Forest.parse(trees, str(path))


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is {path.stat().st_size >> 20} MiB; a model card is far smaller")
        card = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"no model at {path} (`kernrec train` makes one)") from None
    except OSError as error:
        raise UsageError(f"cannot read the model {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no JSON, or is cut short") from None
    if not isinstance(card, dict):
        raise UsageError(f"{path} is JSON, but no model card")
    return card


def _trees(card: Path, entry: Mapping[str, Any]) -> bytes:
    file = str(entry["file"])
    if Path(file).name != file:
        raise UsageError(f"{card} names trees outside of its folder: {file!r:.60}")
    path = card.parent / file
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is {path.stat().st_size >> 20} MiB; trees of kernrec are far smaller")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the trees {path} of {card.name}: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise UsageError(f"{path} is not what {card.name} was written with (SHA-256 differs): damaged or replaced")
    return data


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"model name {name!r:.60}: lower-case letters, digits and _ @ . + - are accepted")
