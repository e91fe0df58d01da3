"""Draw what a command prints on a terminal of 80 columns as an SVG: the picture of the README is real output.

python tools/draw_screen.py docs/images/first-screen.svg "kernrec recommend --workload llama-3-8b-decode --gpu h200"
"""

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console

COLUMNS = 80


def main() -> None:
    """Run the command without the user's databases and write the picture."""
    path, command = sys.argv[1:3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNREC_")}
    environment |= {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "XDG_DATA_HOME": os.devnull}
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(f"$ {command}", style="green", markup=False)
    console.print(done.stdout.rstrip(), markup=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(path, title="kernrec")


if __name__ == "__main__":
    main()
