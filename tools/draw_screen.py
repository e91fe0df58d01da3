"""Draws what a command prints on a terminal of 80 columns as an SVG: the picture of the README is real output.

python tools/draw_screen.py docs/images/first-screen.svg "kernrec recommend --workload llama-3-8b-decode --gpu h200"
"""

import os
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

COLUMNS = 80
_CHARACTER, _LINE, _MARGIN = 8.4, 19, 16
"""Width of a character of the font at 14 px, height of a line, margin; in px."""


def svg_of(command: str, lines: list[str]) -> str:
    """A picture of a terminal with a command and the lines that it printed."""
    shown, command_class = [f"$ {command}", *lines], ' class="c"'
    width, height = COLUMNS * _CHARACTER + 2 * _MARGIN, len(shown) * _LINE + 2 * _MARGIN
    rows = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * number + 14}" xml:space="preserve"'
        f"{command_class if not number else ''}>{escape(line)}</text>"
        for number, line in enumerate(shown)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">
<title>{escape(command)}</title>
<style>text {{ font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d7dce2 }} .c {{ fill: #7fd1a0 }}</style>
<rect width="100%" height="100%" rx="8" fill="#16202b"/>
{rows}
</svg>
"""


def main() -> None:
    """Runs the command without the user's databases, and writes the picture."""
    path, command = sys.argv[1:3]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNREC_")}
    environment |= {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "XDG_DATA_HOME": os.devnull}
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    picture = Path(path)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg_of(command, done.stdout.rstrip().splitlines()), encoding="utf-8")


if __name__ == "__main__":
    main()
