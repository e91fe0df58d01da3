"""Files of a baseline model: a JSON card that describes the training data, and a file with compressed trees. The trees
of each GPU are compressed separately, because a query needs the trees of only one GPU. The card is written last and
contains the SHA-256 of the trees. Loading a model unpickles nothing."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import UsageError, cannot_be
from kernrec.model.baselines.bound import OPS, PowerBase, Timing, features_of
from kernrec.model.baselines.compact_trees import Trees, compressed
from kernrec.model.baselines.model import VendorModel
from kernrec.model.baselines.recorded_set import Head, RecordedSet, SetModel
from kernrec.model.learn.conformal import Extent, interval_from
from kernrec.model.learn.model_file import read_trees
from kernrec.util.array_file import pack, unpack
from kernrec.util.files import read_input, write_whole

FORMAT = 3
_MOST_BYTES = 16 << 20
_QUANTITIES = ("latency", "power")
_EXTENT = ("low", "high", "spread")


def save(card: Mapping[str, Any], trees: Mapping[str, Trees | np.ndarray], folder: Path) -> Path:
    """Write a model's trees and card to a folder, and return the path of the card. The fields `format` and `trees` are
    added to the card. Trees may already be compressed, as `stored` returns them."""
    content = pack({}, {name: f if isinstance(f, np.ndarray) else compressed(f) for name, f in trees.items()})
    file = f"{card['op']}.trees"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / file, content, shared=True)
    whole = {"format": FORMAT, **card, "trees": {"file": file, "sha256": hashlib.sha256(content).hexdigest()}}
    path = folder / f"{card['op']}.json"
    write_whole(path, (json.dumps(whole, sort_keys=True) + "\n").encode(), shared=True)
    return path


def stored(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (card, compressed trees) of a stored model. Raise `UsageError` for the same reasons as `load`."""
    load(path)
    card = json.loads(_content(path))
    return card, unpack(_content(path.parent / card["trees"]["file"]))[1]


def load(path: Path) -> VendorModel:
    """Load a model. Raise `UsageError` if a file cannot be read, is damaged, or has another format version."""
    try:
        card = json.loads(_content(path))
        if card["format"] != FORMAT:
            raise UsageError(f"{path} is a model of format {card['format']!r:.40}; this kernrec reads format {FORMAT}")
        if card["op"] not in OPS:
            raise UsageError(f"{path} is a model of the unknown op {card['op']!r:.40}; known: {', '.join(OPS)}")
        content = read_trees(path, str(card["trees"]["file"]), str(card["trees"]["sha256"]))
        _, arrays = unpack(content, intact=True)
        sets = tuple(_set(card["op"], entry, arrays) for entry in card["sets"])
        return VendorModel(card["op"], sets)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(cannot_be("read", error.filename or path, error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        about = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} is not a backend model, or is incomplete ({about:.80})") from None


def _content(path: Path) -> bytes:
    return read_input(path, _MOST_BYTES)


def _set(op: str, entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> SetModel:
    if entry["case"] not in features_of(op).CASES:
        raise ValueError(f"case {entry['case']!r:.40}")
    working_sets = float(entry["timing"]["working_sets"] or np.inf)
    timing = Timing(float(entry["timing"]["launch_clk"]), working_sets, alone="floors" in entry)
    texts = {str(key): str(value) for key, value in entry["origin"].items()}
    backends = {
        str(backend): {str(gpu): None if version is None else str(version) for gpu, version in cards.items()}
        for backend, cards in entry["stacks"].items()
    }
    multiples = {
        str(backend): {str(name): int(step) for name, step in steps.items()}
        for backend, steps in entry["multiples"].items()
    }
    kinds = {
        str(backend): {str(gpu): tuple(map(str, names)) for gpu, names in cards.items()}
        for backend, cards in entry.get("kinds", {}).items()
    }
    recorded = RecordedSet(
        str(entry["name"]), op, entry["case"], backends, tuple(entry["dtypes"]), tuple(entry["layouts"]),
        tuple(entry["alike"]), float(entry["alike_width"]), timing, tuple(entry["sizes"]), multiples,
        tuple(map(str, entry["local"])), texts, kinds,
    )  # fmt: skip
    floors = {str(gpu): (float(fit[0]), float(fit[1])) for gpu, fit in entry.get("floors", {}).items()}
    work = _extent(entry["work"]) if floors else None
    heads = {}
    for quantity in _QUANTITIES:
        for gpu, head in entry["heads"].get(quantity, {}).items():
            heads[quantity, str(gpu)] = Head(
                tuple(head["columns"]),
                arrays[head["trees"]],
                interval_from(head["recorded"]),
                interval_from(head["between"]),
                bool(head.get("sustained")),
                {str(backend): float(seconds) for backend, seconds in head.get("overheads_s", {}).items()},
            )
    sizes = {str(name): tuple(map(int, values)) for name, values in entry["sizes"].items()}
    bases = entry.get("power_bases")
    if bases is not None:
        bases = {str(gpu): PowerBase(*map(float, watts)) for gpu, watts in bases.items()}
    return SetModel(recorded, sizes, _extent(entry["extent"]), heads, floors, work, bases)


def _extent(entry: Mapping[str, Any]) -> Extent:
    low, high, spread = (np.array([float(v) for v in entry[key]]) for key in _EXTENT)
    return Extent(low, high, spread, np.zeros(len(low), dtype=np.int64))
