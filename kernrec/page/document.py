"""The page's document: HTML, style and script of our own, and Bokeh's script, which comes with the package `bokeh`.

A served page loads them from the server; a report has them inside. Neither asks the network for anything: the policy in
the document forbids the browser to.
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
"""The content that the browser may load; `unsafe-inline` for styles because Bokeh writes style elements."""
_REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
    " form-action 'none'"
)


@cache
def content(name: str) -> str:
    """The text of one of the page's files.

    Raises:
        KernrecError: Bokeh is not installed; the message names the extra.
    """
    if name not in BOKEH_SCRIPTS:
        return (_STATIC / name).read_text(encoding="utf-8")
    require_optional(["bokeh"], "the page", "page")
    spec = importlib.util.find_spec("bokeh")
    assert spec is not None
    assert spec.origin is not None
    # Bokeh itself is not imported: the page is drawn by its script alone.
    return (Path(spec.origin).parent / "server" / "static" / "js" / name).read_text(encoding="utf-8")


def served_document(data: dict[str, Any]) -> str:
    """The document that loads style and scripts from its server; `data` is what the script starts with."""
    head = f'<link rel="stylesheet" href="/{STYLE}">'
    scripts = "".join(f'<script src="/{name}"></script>' for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS))
    return _document(head, data, scripts)


def offline_document(data: dict[str, Any]) -> str:
    """The document with all that it needs inside."""
    head = f'<meta http-equiv="Content-Security-Policy" content="{_REPORT_POLICY}"><style>{content(STYLE)}</style>'
    scripts = "".join(
        f"<script>{content(name).replace('</script', '<' + chr(92) + '/script')}</script>"
        for name in (*BOKEH_SCRIPTS, *OWN_SCRIPTS)
    )
    return _document(head, data, scripts)


def _document(head: str, data: dict[str, Any], scripts: str) -> str:
    # `<` is all that could end a script element; JSON may write it as a code.
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
