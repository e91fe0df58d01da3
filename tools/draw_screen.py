"""Draw the output of a command on a terminal of 80 columns as an SVG, for the picture in the README.

python tools/draw_screen.py docs/images/first-screen.svg "kernrec recommend --workload llama-3-8b-decode --gpu h200"
"""

import os
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

COLUMNS, LINE = 80, 19
"""Characters per line of the terminal, and height of a line in pixels."""


def main() -> None:
    """Run the command without the user's databases, and write the picture."""
    path, command = sys.argv[1:3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNREC_")}
    environment |= {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "XDG_DATA_HOME": os.devnull}
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    lines = [f"$ {command}", *done.stdout.rstrip().splitlines()]
    height = LINE * len(lines) + 32
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 {height}" width="704">',
        f"<title>{escape(command)}</title>",
        "<style>text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d7dce2 } "
        ".c { fill: #7fd1a0 }</style>",
        '<rect width="100%" height="100%" rx="8" fill="#16202b"/>',
    ]
    for number, line in enumerate(lines):
        color = "" if number else ' class="c"'
        svg.append(f'<text x="16" y="{30 + LINE * number}" xml:space="preserve"{color}>{escape(line)}</text>')
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join([*svg, "</svg>", ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
