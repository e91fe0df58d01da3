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


def add_wheel(wheel: Path, engine: str, number: str, entry: dict[str, Any]) -> None:
    """Add the release of a wheel to an engine's entry in the table: its date, and the names of its tuned files."""
    with zipfile.ZipFile(wheel) as archive:
        entry["dates"][number] = "{:04}-{:02}-{:02}".format(*max(info.date_time[:3] for info in archive.infolist()))
        for kind, folder in FOLDERS[engine].items():
            start = f"{engine}/{folder}/"
            names = [name.removeprefix(start) for name in archive.namelist() if name.startswith(start)]
            for parts in filter(None, map(divided, (name for name in names if name.endswith(".json")))):
                if parts[0].startswith("NVIDIA"):
                    add_file(entry["files"].setdefault(kind.value, {}).setdefault(parts[0], {}), parts[1], number)


def add_file(by_releases: dict[str, list[str]], name: str, number: str) -> None:
    """Add a release to a file name. `by_releases` contains the names, keyed by the releases that include them."""
    releases = {each: set(key.split()) for key, names in by_releases.items() for each in names}
    releases.setdefault(name, set()).add(number)
    by_releases.clear()
    for each in sorted(releases):
        by_releases.setdefault(" ".join(sorted(releases[each], key=numbers)), []).append(each)


def main(wheels: list[str]) -> int:
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for wheel in wheels:
        match = re.match(r"(vllm|sglang)-(\d+(?:\.\d+)+)-", Path(wheel).name)
        if match is None:
            print(f"{wheel}: no wheel of vllm or sglang", file=sys.stderr)
            return 2
        add_wheel(Path(wheel), match[1], match[2], table.setdefault(match[1], {"dates": {}, "files": {}}))
    TABLE.write_text(json.dumps(table, indent=0, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
