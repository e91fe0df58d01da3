"""Draw the output of a command on a terminal of 80 columns as an SVG, for the picture in the README.

python tools/draw_screen.py docs/images/first-screen.svg "kernrec recommend --workload llama-3-8b-decode --gpu h200"
"""

import os
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

LINE = 19
"""Height of a line in pixels."""
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 {height}" width="704">
<title>{title}</title>
<style>text {{ font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d7dce2 }} .c {{ fill: #7fd1a0 }}</style>
<rect width="100%" height="100%" rx="8" fill="#16202b"/>
"""

if __name__ == "__main__":
    path, command = sys.argv[1:3]
    # Run the command without the user's databases.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNREC_")}
    environment |= {"COLUMNS": "80", "NO_COLOR": "1", "XDG_DATA_HOME": os.devnull}
    words = [sys.executable, "-m", *shlex.split(command)]
    output = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    lines = [f"$ {command}", *output.rstrip().splitlines()]
    svg = SVG.format(height=LINE * len(lines) + 32, title=escape(command))
    for number, line in enumerate(lines):
        color = "" if number else ' class="c"'
        svg += f'<text x="16" y="{30 + LINE * number}" xml:space="preserve"{color}>{escape(line)}</text>\n'
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(f"{svg}</svg>\n", encoding="utf-8")
