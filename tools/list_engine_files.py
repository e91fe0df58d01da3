"""List the names of the tuned files that releases of vLLM and SGLang include, from their wheels.

    python tools/list_engine_files.py vllm-0.33.0-....whl sglang-0.5.23-....whl

The tool adds to a table the names of the files for NVIDIA GPUs, and the date of the newest file in each wheel.
"""

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernrec.recommender.serving.tuned_files import FOLDERS, TABLE, divided, numbers

Files = dict[tuple[str, str, str], set[str]]
"""Releases that include a tuned file, keyed by the file's (kind, device, name)."""


def read_table() -> dict[str, tuple[dict[str, str], Files]]:
    """Return the table: for each engine, the dates of its releases and its tuned files."""
    document = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    engines: dict[str, tuple[dict[str, str], Files]] = {engine: ({}, {}) for engine in FOLDERS}
    for engine, entry in document.items():
        engines[engine][0].update(entry["dates"])
        for kind, devices in entry["files"].items():
            for device, by_releases in devices.items():
                for releases, names in by_releases.items():
                    for name in names:
                        engines[engine][1][kind, device, name] = set(releases.split())
    return engines


def add_wheel(wheel: Path, engine: str, number: str, dates: dict[str, str], files: Files) -> None:
    """Add the names of the tuned files in a wheel to `files`, and the date of the release to `dates`."""
    with zipfile.ZipFile(wheel) as archive:
        dates[number] = "{:04}-{:02}-{:02}".format(*max(info.date_time[:3] for info in archive.infolist()))
        for kind, folder in FOLDERS[engine].items():
            start = f"{engine}/{folder}/"
            for name in archive.namelist():
                if name.startswith(start) and name.endswith(".json"):
                    parts = divided(name.removeprefix(start))
                    if parts and parts[0].startswith("NVIDIA"):
                        files.setdefault((kind.value, *parts), set()).add(number)


def write_table(engines: dict[str, tuple[dict[str, str], Files]]) -> None:
    """Write the table with one line per file name."""
    document: dict[str, Any] = {}
    for engine, (dates, files) in engines.items():
        entry = document[engine] = {"dates": dates, "files": {}}
        for (kind, device, name), releases in sorted(files.items()):
            by_releases = entry["files"].setdefault(kind, {}).setdefault(device, {})
            by_releases.setdefault(" ".join(sorted(releases, key=numbers)), []).append(name)
    TABLE.write_text(json.dumps(document, indent=0, sort_keys=True, separators=(",", ":")) + "\n")


def main(wheels: list[str]) -> int:
    """Add the releases of some wheels to the table. Return the exit status."""
    engines = read_table()
    for wheel in wheels:
        match = re.match(r"(vllm|sglang)-(\d+(?:\.\d+)+)-", Path(wheel).name)
        if match is None:
            print(f"{wheel}: no wheel of vllm or sglang", file=sys.stderr)
            return 2
        dates, files = engines[match[1]]
        add_wheel(Path(wheel), match[1], match[2], dates, files)
    write_table(engines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
