"""Files of a baseline model: a JSON card that describes the training data, and a file with compressed trees.

The trees of each GPU are compressed separately, because a query needs only one GPU. The card is written last and
contains the SHA-256 of the trees. Loading a model unpickles nothing.
"""

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
    """Write a model's trees and card to a folder, and return the path of the card. Arrays in `trees` are already
    compressed."""
    content = pack({}, {name: f if isinstance(f, np.ndarray) else compressed(f) for name, f in trees.items()})
    file = f"{card['op']}.trees"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / file, content, shared=True)
    whole = {"format": FORMAT, **card, "trees": {"file": file, "sha256": hashlib.sha256(content).hexdigest()}}
    path = folder / f"{card['op']}.json"
    write_whole(path, (json.dumps(whole, sort_keys=True) + "\n").encode(), shared=True)
    return path


def stored(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (card, compressed trees) of a stored model. Raise `UsageError` if the files are unreadable or damaged."""
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
    working_sets = entry["timing"]["working_sets"] or np.inf
    timing = Timing(entry["timing"]["launch_clk"], working_sets, alone="floors" in entry)
    recorded = RecordedSet(
        entry["name"], op, entry["case"], entry["stacks"], tuple(entry["dtypes"]), tuple(entry["layouts"]),
        tuple(entry["alike"]), entry["alike_width"], timing, tuple(entry["sizes"]), entry["multiples"],
        tuple(entry["local"]), entry["origin"], entry.get("kinds", {}),
    )  # fmt: skip
    heads = {
        (quantity, gpu): Head(
            tuple(head["columns"]),
            arrays[head["trees"]],
            interval_from(head["recorded"]),
            interval_from(head["between"]),
            bool(head.get("sustained")),
            head.get("overheads_s", {}),
        )
        for quantity in _QUANTITIES
        for gpu, head in entry["heads"].get(quantity, {}).items()
    }
    floors, bases = entry.get("floors", {}), entry.get("power_bases")
    if bases is not None:
        bases = {gpu: PowerBase(*watts) for gpu, watts in bases.items()}
    work = _extent(entry["work"]) if floors else None
    return SetModel(recorded, entry["sizes"], _extent(entry["extent"]), heads, floors, work, bases)


def _extent(entry: Mapping[str, Any]) -> Extent:
    low, high, spread = (np.array([float(v) for v in entry[key]]) for key in _EXTENT)
    return Extent(low, high, spread, np.zeros(len(low), dtype=np.int64))
