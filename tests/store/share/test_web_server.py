"""Test a web server as a remote: no response, redirects, truncated responses and missing files."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.store.share import servers
from kernrec.store.share.place import MissingFileError
from kernrec.store.share.pull import take_new
from kernrec.store.share.servers import WebServer


class Answers(BaseHTTPRequestHandler):
    target = ""
    """URL to which redirects lead."""

    def do_GET(self) -> None:
        if self.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", f"{self.target}/index.json")
        elif self.path == "/moved/index.json":
            self.send_response(301)
            self.send_header("Location", "/good/index.json")
        elif self.path == "/good/index.json":
            self.send_response(200)
            self.send_header("Content-Length", "13")
        elif self.path == "/short/index.json":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
        else:
            self.send_response(404)
        self.end_headers()
        self.wfile.write(b'{"names": []}')

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_redirect_is_followed_only_on_the_same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as url:
        monkeypatch.setattr(Answers, "target", url.replace("127.0.0.1", "localhost"))
        assert WebServer(f"{url}/good").names() == WebServer(f"{url}/moved").names() == []
        with pytest.raises(UsageError, match="redirects to another host, http://localhost:"):
            WebServer(f"{url}/away").names()


def test_truncated_oversized_or_missing_response_is_reported_in_one_line() -> None:
    with served() as url:
        with pytest.raises(KernrecError, match=r"index\.json of .*/short was cut short by its server"):
            WebServer(f"{url}/short").names()
        with pytest.raises(MissingFileError, match=r"/none has no index\.json"):
            WebServer(f"{url}/none").names()
        with pytest.raises(UsageError, match="is larger than 12 bytes"):
            list(WebServer(f"{url}/good").read("index.json", 12))


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_silent_server_times_out(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections = []

        def answer() -> None:
            connections.append(listening.accept()[0])
            connections[0].sendall(sent)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        place = WebServer(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(KernrecError, match=r"sent nothing for 0\.2 s"):
            list(place.read("index.json", 1000))
        thread.join()
        connections[0].close()


class Emptied:
    """Remote whose bundles are all gone."""

    title = "https://there"

    def names(self, under: str = "") -> list[str]:
        names = [f"h200-sxm/2026-03-01-0123abcd-{number:012x}.zip" for number in range(1500)]
        return [name for name in names if name.startswith(under)]

    def read(self, name: str, most: int) -> Iterator[bytes]:
        raise MissingFileError(f"{self.title} has no {name}")

    def write(self, name: str, source: Path) -> None:
        raise AssertionError


def test_1500_missing_bundles_are_reported_in_one_line(tmp_path: Path) -> None:
    report = take_new(Emptied(), tmp_path / "pulled.duckdb")
    (line,) = report.left
    assert line.startswith("https://there has no h200-sxm/2026-03-01-0123abcd-000000000000.zip")
    assert line.endswith(", and 1499 more files are missing")
