"""Stand-ins for object stores that implement the requests of kernrec's clients.

The clients are real. For Google Cloud Storage, the stand-in implements the XML API (object, generation precondition,
listing). For the Hugging Face Hub, it implements a data set's main branch with small files (no LFS, no Xet).
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
    """Run a stand-in server inside this context, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.files = {}  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def bucket(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a local S3 server (moto) with a bucket `team`; yield the environment variables for its clients."""
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
    """Request handler that stores and returns files in memory."""

    protocol_version = "HTTP/1.1"

    @property
    def files(self) -> dict[str, bytes]:
        """Stored objects by name."""
        files: dict[str, bytes] = self.server.files  # type: ignore[attr-defined]
        return files

    @property
    def name(self) -> str:
        """Return the requested path."""
        return unquote(urlsplit(self.path).path).strip("/")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def body(self) -> bytes:
        """Return the body that the client sent."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Send a response with this status and content."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
