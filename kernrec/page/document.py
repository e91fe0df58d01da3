"""Build the page's document from our HTML, style and script, and Bokeh's script from the package `bokeh`.

A served page loads style and scripts from its server; a report contains them. The content security policy forbids any
use of the network.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from kernrec.util.optional import require_optional

_STATIC = Path(__file__).with_name("static")
OWN_SCRIPTS = ("format.js", "view.js", "plots.js", "views.js", "front_plot.js", "page.js")
BOKEH_SCRIPTS = ("bokeh.min.js", "bokeh-api.min.js")
STYLE = "page.css"

SERVED_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy. Styles need `unsafe-inline` because Bokeh writes style elements."""
_REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
    " form-action 'none'"
)


@cache
def content(name: str) -> str:
    """Return the text of one of the page's files. Raises `KernrecError`, which names the extra to install, if Bokeh is
    missing.
    """
    if name not in BOKEH_SCRIPTS:
        return (_STATIC / name).read_text(encoding="utf-8")
    require_optional(["bokeh"], "the page", "page")
    spec = importlib.util.find_spec("bokeh")
    assert spec is not None
    assert spec.origin is not None
    # Do not import Bokeh: the page only needs its script.
    return (Path(spec.origin).parent / "server" / "static" / "js" / name).read_text(encoding="utf-8")


def served_document(data: dict[str, Any]) -> str:
    """Return the document that loads style and scripts from its server.

    Args:
        data: Initial data of the script.
    """
    head = f'<link rel="stylesheet" href="/{STYLE}">'
    scripts = "".join(f'<script src="/{name}"></script>' for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS))
    return _document(head, data, scripts)


def offline_document(data: dict[str, Any]) -> str:
    """Return a self-contained document."""
    head = f'<meta http-equiv="Content-Security-Policy" content="{_REPORT_POLICY}"><style>{content(STYLE)}</style>'
    scripts = "".join(
        f"<script>{content(name).replace('</script', '<' + chr(92) + '/script')}</script>"
        for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS)
    )
    return _document(head, data, scripts)


def _document(head: str, data: dict[str, Any], scripts: str) -> str:
    # Only `<` can start the end tag of a script element, so escape it in JSON.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = content("page.html")
    parts = {
        "<!--head-->": head,
        "<!--data-->": f'<script type="application/json" id="data">{text}</script>',
        "<!--scripts-->": scripts,
    }
    for place, part in parts.items():
        before, _, after = page.partition(place)
        page = before + part + after
    return page
