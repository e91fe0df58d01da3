"""Model files: arrays with the trees of each predicted quantity, and a JSON card that describes the model.

    models/<name>.json                  the card, with the SHA-256 of every other file
    models/<name>.latency.<hash>.trees  the trees of one quantity, here of the latency

Loading a model unpickles nothing. Files are written atomically, and the card last, so a reader sees either the old or
the new model. The cards of kernrec 0.1.0 also name a `.ubj` file, which is ignored.
"""

import hashlib
import json
import math
import mmap
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.model.learn import features
from kernrec.model.learn.conformal import Extent, interval_from
from kernrec.model.learn.forest import Forest
from kernrec.model.learn.model import ANALYTICAL, HEADS, SHAPE, Model
from kernrec.util.array_file import mapped
from kernrec.util.files import lock_path, read_input, write_whole
from kernrec.util.optional import import_optional
from kernrec.version import __version__

FORMAT = 2
TREES = ".trees"
_PARTS = (*HEADS, SHAPE)
_EXTENT = ("low", "high", "spread")
_MOST_BYTES = 64 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_@.+-]*")


def save(model: Model, folder: Path, name: str, training: Mapping[str, Any]) -> Path:
    """Write a model to a folder, and return the path of its card. `name` is an op such as `matmul`, or
    `matmul@rtx4090`. The card stores `training`, a description of the training data. Raise `KernrecError` if a file
    cannot be written."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid model name {name!r:.60}: lower-case letters, digits and _ @ . + - are allowed")
    xgboost = import_optional("xgboost", "training a model", "train")

    heads = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_writer(folder):
            for head, forest in model.forests.items():
                trees = forest.packed()
                # The file name contains a hash of the content, so an old model card never refers to new trees.
                digest = hashlib.sha256(trees).hexdigest()
                heads[head] = {"file": f"{name}.{head}.{digest[:12]}{TREES}", "sha256": digest}
                write_whole(folder / heads[head]["file"], trees, shared=True)
            card = {
                "format": FORMAT,
                "name": name,
                "features": {"version": features.VERSION, "columns": list(model.columns)},
                "heads": heads,
                "extent": {
                    key: [None if np.isinf(v) else float(v) for v in getattr(model.extent, key)] for key in _EXTENT
                },
                "intervals": {
                    quantity: {key: vars(interval) for key, interval in intervals.items()}
                    for quantity, intervals in model.intervals.items()
                },
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
            _delete_old(folder, name, {head["file"] for head in heads.values()})
    except OSError as error:
        raise KernrecError(cannot_be("written", f"the model {folder / name}", error)) from None
    return path


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    descriptor = lock_path(folder / ".lock", wait_s=math.inf)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def _delete_old(folder: Path, name: str, current: Collection[str]) -> None:
    """Delete a model's unused tree files, and temporary files of killed training processes."""
    trees = rf"{re.escape(name)}\.(?:{'|'.join(_PARTS)})\.[0-9a-f]{{12}}\.(?:ubj|trees)"
    temporary = re.compile(rf"\.(?:{trees}|{re.escape(name)}\.json)\.[0-9a-f]{{12}}")
    for path in folder.iterdir():
        if temporary.fullmatch(path.name) or (path.name not in current and re.fullmatch(trees, path.name)):
            path.unlink(missing_ok=True)


def load(path: Path, trees: bool = True) -> tuple[Model, dict[str, Any]]:
    """Return a model and its card. If `trees` is false, read the trees on first use. Raise `UsageError` if a file is
    unreadable, damaged, or from another version of kernrec."""
    card = _json(path)
    if "format" in card and card["format"] != FORMAT:
        raise UsageError(
            f"{path} is a model of format {card['format']!r:.40}; this kernrec reads format {FORMAT}:"
            " run `kernrec train` again"
        )
    _check_complete(path, card)
    # In model cards of kernrec 0.1, "the prior" means the analytical model.
    card["scores"] = {name.replace(" of the prior", ANALYTICAL): value for name, value in card["scores"].items()}
    try:
        texts = [*card["gpus"], *card["ops"], *card["kernels"], *card["kernels"].values()]
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{path} is not a model card of kernrec's: gpus, kernels and ops must hold only texts")
        version, columns = card["features"]["version"], tuple(card["features"]["columns"])
        if version != features.VERSION:
            raise UsageError(
                f"{path} was trained on version {version!r} of the features; this kernrec has version"
                f" {features.VERSION}: run `kernrec train` again"
            )
        named, prefixes = set(features.names()), (features.TUNABLE, features.ALIGNMENT)
        unknown = [column for column in columns if column not in named and not str(column).startswith(prefixes)]
        if unknown:
            raise UsageError(f"{path} uses a feature that this kernrec does not have: {unknown[0]!s:.60}")
        forests = _Forests(path, card["heads"], len(columns))
        if trees:
            dict(forests)  # Accessing all items makes `_Forests` read and cache all trees.
        model = Model(
            columns,
            _extent(path, card["extent"], columns),
            {
                quantity: {key: interval_from(entry) for key, entry in entries.items()}
                for quantity, entries in card["intervals"].items()
            },
            dict(card["scores"]),
            tuple(card["gpus"]),
            dict(card["kernels"]),
            tuple(card["ops"]),
            bool(card["helps_new_kernels"]),
            forests,
        )
    except KeyError as error:
        raise UsageError(f"{path} is not a model card of kernrec's: {error.args[0]!r:.60} is missing") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path} is not a model card of kernrec's: {_first_line(error)}") from None
    return model, card


_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "format": int, "name": str, "features": dict, "features.columns": list, "features.version": int, "heads": dict,
    "extent": dict, "extent.low": list, "extent.high": list, "extent.spread": list, "intervals": dict, "scores": dict,
    "gpus": list, "kernels": dict, "ops": list, "helps_new_kernels": bool, "versions": dict, "training": dict,
    "training.measurements": int, "training.mark": str, "training.rows": int, "training.problems": (list, int),
    "training.data_sha256": str, "training.prior": dict, "training.prior.probe": list,
    "training.prior.calibrations": dict,
}  # fmt: skip
"""Required fields of a card and their types. Outer fields come before the fields inside them."""
_TYPE_NAMES: Mapping[type | tuple[type, ...], str] = {
    int: "a number", str: "a text", dict: "an object", list: "a list", bool: "true or false",
    (list, int): "a list or a number",
}  # fmt: skip


def problem_count(training: Mapping[str, Any]) -> int:
    """Return the number of training problems, given a card's `training` entry."""
    # The entry contains either a list of the problems or only their number.
    problems = training["problems"]
    return problems if isinstance(problems, int) else len(problems)


def _check_complete(path: Path, card: Mapping[str, Any]) -> None:
    for field, kind in _FIELDS.items():
        part: Any = card
        *above, last = field.split(".")
        for step in above:
            part = part[step]
        if last not in part:
            raise UsageError(f"{path} is not a model card of kernrec's, or is incomplete: {field} is missing")
        if not isinstance(part[last], kind):
            raise UsageError(
                f"{path} is not a model card of kernrec's: {field} is {part[last]!r:.40}, expected {_TYPE_NAMES[kind]}"
            )


def _extent(path: Path, entry: Mapping[str, Any], columns: Sequence[str]) -> Extent:
    ends = {name: np.array([np.inf if v is None else float(v) for v in entry[name]]) for name in _EXTENT}
    if any(len(end) != len(columns) for end in ends.values()):
        raise UsageError(f"{path}: the extent does not have one number for each feature")
    return Extent(**ends, part=features.parts(columns))


class _Forests(Mapping[str, Forest]):
    """Trees of a model, keyed by predicted quantity. Each file is read on first use."""

    def __init__(self, card: Path, heads: Mapping[str, Any], features: int) -> None:
        for head in heads:
            if head not in _PARTS:
                raise UsageError(f"{card} has a head {head!r:.40}; known: {', '.join(_PARTS)}")
        if "latency" not in heads:
            raise UsageError(f"{card} has no latency head")
        self._card, self._heads, self._features = card, heads, features
        self._read: dict[str, Forest] = {}

    def __getitem__(self, head: str) -> Forest:
        if head not in self._read:
            entry = self._heads[head]
            named = str(entry["file"])
            file = named.removesuffix(Path(named).suffix) + TREES
            content = read_trees(self._card, file, str(entry.get("arrays", entry["sha256"])))
            try:
                forest = Forest.unpacked(content)
            except ValueError as error:
                unusable = f"{self._card.parent / file} holds no trees that can be used: {_first_line(error)}"
                raise UsageError(unusable) from None
            if forest.features != self._features:
                raise UsageError(
                    f"{self._card}: the {head} trees take {forest.features} features, the card names {self._features}"
                )
            self._read[head] = forest
        return self._read[head]

    def __contains__(self, head: object) -> bool:
        return head in self._heads

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def read_trees(card: Path, file: str, digest: str) -> bytes | mmap.mmap:
    """Map the file with a model's trees into memory. Raise `UsageError` if the file is unreadable, or if its SHA-256 is
    not `digest`."""
    if Path(file).name != file:
        raise UsageError(f"{card} names trees outside of its folder: {file!r:.60}")
    path, read = card.parent / file, hashlib.sha256()
    try:
        content = mapped(path, read) if path.stat().st_size <= _MOST_BYTES else b""
    except OSError as error:
        raise UsageError(cannot_be("read", f"the trees {path} of {card.name}", error)) from None
    except ValueError:  # An empty file cannot be mapped.
        content = b""
    if not content or read.hexdigest() != digest:
        raise UsageError(f"{path} is damaged or was replaced: its SHA-256 is not the one in {card.name}")
    return content


def _json(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(read_input(path, _MOST_BYTES, f"the model card {path}"))
        json.dumps(card, allow_nan=False)  # A card must not contain NaN or 1e999.
    except FileNotFoundError:
        raise UsageError(f"no model at {path} (`kernrec train` makes one)") from None
    except OSError as error:
        raise UsageError(cannot_be("read", f"the model {path}", error)) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON, is cut short, or has a number that is not finite") from None
    if not isinstance(card, dict):
        raise UsageError(f"{path} is JSON, but not a model card")
    return card
