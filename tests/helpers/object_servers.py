"""Stand-ins for object stores that no package emulates: as much of their interface as kernrec's clients ask for.

The clients are the real ones. Of Google Cloud Storage it is the XML interface (object, precondition on the generation,
listing), of the Hugging Face Hub the interface of a data set's main branch with small files (no LFS, no Xet).
"""

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@contextmanager
def served(handler: "type[StandIn]") -> Iterator[str]:
    """The address of a stand-in, for as long as the context lasts."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.files = {}  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def bucket(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The variables that lead to a bucket `team` of an S3 server of this machine (moto), which runs meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "moto.server", "-p", url.rpartition(":")[2]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{url}/team", method="PUT"), timeout=10)
                break
            except OSError:
                time.sleep(0.1)
        variables = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
        yield variables | {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
    finally:
        server.kill()
        server.wait()


class StandIn(BaseHTTPRequestHandler):
    """Answers requests from the files that were put."""

    protocol_version = "HTTP/1.1"

    @property
    def files(self) -> dict[str, bytes]:
        """The objects by name."""
        files: dict[str, bytes] = self.server.files  # type: ignore[attr-defined]
        return files

    @property
    def name(self) -> str:
        """The path that is asked for."""
        return unquote(urlsplit(self.path).path).strip("/")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def body(self) -> bytes:
        """What the client sent."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
