"""Serve the page over HTTP on the loopback interface, for a browser on this machine.

A website can send requests to the loopback interface (DNS rebinding). So the server requires a Host header that names
the loopback interface, answers only GET, and forbids other sites to read answers.
"""

import errno
import json
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from kernrec.errors import KernrecError, UsageError
from kernrec.page.answers import Answers
from kernrec.page.document import BOKEH_SCRIPTS, OWN_SCRIPTS, SERVED_POLICY, STYLE, content, served_document

HOST = "127.0.0.1"
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "json": "application/json"}
_MOST_PARAMETERS = 20
_FILES = (STYLE, *OWN_SCRIPTS, *BOKEH_SCRIPTS)


class PageServer(ThreadingHTTPServer):
    """HTTP server for the page. It runs until `shutdown` is called.

    Args:
        answers: Answers to the page's requests.
        port: Number of the port, or 0 for any free port.
        chosen: Initial selection: `gpus`, and the parameters of a problem or a `workload`.

    Raises:
        UsageError: The port is in use, out of range or not permitted.
        KernrecError: Bokeh is not installed.
    """

    daemon_threads = True
    # With the default of 5 waiting connections, the system would reset further connections.
    request_queue_size = 512
    # A second server on the same port would get some of the requests.
    allow_reuse_address = False

    def __init__(self, answers: Answers, port: int, chosen: dict[str, Any]) -> None:
        self.answers = answers
        for name in _FILES:
            content(name)
        data = {"mode": "served", "options": answers.options(), "chosen": chosen}
        self.document = served_document(data)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise UsageError(f"port {port} {why}; give another --port, or 0 for one that is free") from None
        except OverflowError:
            raise UsageError(f"port {port} is out of range; 0 to 65535 are accepted") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that the browser closed. Print a traceback for other errors."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        if hasattr(socket, "SO_REUSEADDR") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "kernrec", ""
    protocol_version = "HTTP/1.0"  # Close after one request, so that an unread body is not parsed as a request.
    timeout = 30

    def do_GET(self) -> None:
        if not self._from_loopback():
            self._send(HTTPStatus.FORBIDDEN, "html", "this page is only for the browser of this machine")
            return
        path, _, query = self.path.partition("?")
        name = path.removeprefix("/")
        if not name:
            self._send(HTTPStatus.OK, "html", self.server.document)
        elif name in _FILES:
            self._send(HTTPStatus.OK, name.rpartition(".")[2], content(name))
        elif name.startswith("api/") and (asks := name.removeprefix("api/")) in self.server.answers.paths:
            status, answer = HTTPStatus.OK, None
            try:
                answer = self.server.answers.answer(asks, _parameters(query))
            except KernrecError as error:
                status, answer = HTTPStatus.BAD_REQUEST, {"error": str(error)}
            except Exception as error:  # Send any error to the browser, so that the page keeps working.
                status, answer = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}
            self._send(status, "json", json.dumps(answer, separators=(",", ":")))
        else:
            self._send(HTTPStatus.NOT_FOUND, "html", "there is no such page")

    def _from_loopback(self) -> bool:
        port = self.server.server_address[1]
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].lower() in (f"{HOST}:{port}", f"localhost:{port}")

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": f"{_TYPES[kind]}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": SERVED_POLICY,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep standard error free for messages to the user."""


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise UsageError("the request is not a list of name=value") from None
    return dict(pairs)
