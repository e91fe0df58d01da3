"""Test remotes on real S3 and web servers, on an emulated Google Cloud Storage, and on web servers that fail."""

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.store.share import servers
from kernrec.store.share.place import Folder, MissingFileError, Place
from kernrec.store.share.pull import take_new
from kernrec.store.share.servers import WebServer, place_of
from tests.helpers.command import environment
from tests.helpers.sharing import Person, measurement, sessions


@contextmanager
def bucket(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run a local S3 server (moto) with a bucket `team`. Yield the environment variables for its clients."""
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


SEGMENT = f"segments/{'0' * 64}.parquet"


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    pytest.importorskip("moto", reason="moto is not installed")
    with bucket(environment()) as variables:
        yield variables


def put(place: Place, name: str, content: bytes, folder: Path) -> None:
    (file := folder / "content").write_bytes(content)
    place.write(name, file)


def test_bucket_can_be_pushed_and_pulled(s3, tmp_path, monkeypatch):
    """Immutable files keep their content, other files can be replaced, and only known names are listed."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    place = place_of("s3://team/some/where")
    put(place, SEGMENT, b"first", tmp_path)
    put(place, SEGMENT, b"second", tmp_path)
    put(place, "index.json", b"1", tmp_path)
    put(place, "index.json", b"2", tmp_path)
    assert place.names() == ["index.json", SEGMENT]
    assert b"".join(place.read(SEGMENT, 5)) == b"first"
    assert b"".join(place.read("index.json", 5)) == b"2"
    with pytest.raises(UsageError, match="is larger than 4 bytes"):
        list(place.read(SEGMENT, 4))
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        list(place.read("manifest.json", 9))
    with pytest.raises(UsageError, match="is not the name of a file in a bundle"):
        list(place.read("../secret", 9))
    with pytest.raises(UsageError, match=r"^the bucket of s3://nowhere/x does not exist$"):
        place_of("s3://nowhere/x").names()


@pytest.mark.every(3)
def test_unreachable_server_is_reported_in_one_line(monkeypatch):
    pytest.importorskip("obstore", reason="the extra `remote` is not installed")
    monkeypatch.setattr("kernrec.store.share.servers._RETRY", {"max_retries": 0})
    with socket.socket() as taken:  # this port is in use, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(KernrecError, match=f"^{url}/team: {url} does not answer$"):
            place_of(f"{url}/team").names()


@pytest.mark.every(3)
@pytest.mark.slow
def test_concurrent_pushes_to_a_bucket_are_visible_over_http(s3, tmp_path):
    alice, bob = Person(tmp_path / "alice"), Person(tmp_path / "bob")
    os.environ.update(s3)
    try:
        running = []
        for person in (alice, bob):
            person.measure([measurement(session=person.home.name, position=i) for i in range(40)])
            person.key()
            running.append(person.start("db", "push", "s3://team/kernrec", "--licence", "CC0-1.0"))
        assert [process.wait(300) for process in running] == [0, 0]
        assert alice.push("s3://team/kernrec") == 0
        bucket = place_of("s3://team/kernrec")
        names = bucket.names()
        copied = tmp_path / "served"
        for name in names:
            put(Folder(copied), name, b"".join(bucket.read(name, 2**30)), tmp_path)
    finally:
        for name in s3:
            del os.environ[name]
    assert json.loads((copied / "index.json").read_text())["names"] == [name for name in names if name.endswith(".zip")]
    # A web server offers the same files, but no listing.
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(copied))
    with served(handler) as url:
        carol = Person(tmp_path / "carol")
        report = carol.pull(url)
        with pytest.raises(UsageError, match="can only be read"):
            put(place_of(url), "index.json", b"", tmp_path)
        with pytest.raises(UsageError, match=r"has no index\.json"):
            place_of(f"{url}/segments").names()
    assert (report.measurements, report.left) == (80, [])
    assert sessions(carol.pulled()) == sorted((name, i) for name in ("alice", "bob") for i in range(40))
    assert len(carol.pulled()) == 80  # pulled rows need no server


class Answers(BaseHTTPRequestHandler):
    target = ""

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
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_redirect_is_followed_only_on_the_same_host(monkeypatch):
    with served(Answers) as url:
        monkeypatch.setattr(Answers, "target", url.replace("127.0.0.1", "localhost"))
        assert WebServer(f"{url}/good").names() == WebServer(f"{url}/moved").names() == []
        with pytest.raises(UsageError, match="redirects to another host, http://localhost:"):
            WebServer(f"{url}/away").names()


def test_truncated_oversized_or_missing_response_is_reported_in_one_line():
    with served(Answers) as url:
        with pytest.raises(KernrecError, match=r"index\.json of .*/short was cut short by its server"):
            WebServer(f"{url}/short").names()
        with pytest.raises(MissingFileError, match=r"/none has no index\.json"):
            WebServer(f"{url}/none").names()
        with pytest.raises(UsageError, match="is larger than 12 bytes"):
            list(WebServer(f"{url}/good").read("index.json", 12))


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\n{"])
def test_silent_server_times_out(sent, monkeypatch):
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
    title = "https://there"

    def names(self) -> list[str]:
        return [f"h200-sxm/2026-03-01-0123abcd-{number:012x}.zip" for number in range(1500)]

    def read(self, name: str, most: int) -> Iterator[bytes]:
        raise MissingFileError(f"{self.title} has no {name}")

    def write(self, name: str, source: Path) -> None:
        raise AssertionError


def test_1500_missing_bundles_are_reported_in_one_line(tmp_path):
    report = take_new(Emptied(), tmp_path / "pulled.duckdb")
    (line,) = report.left
    assert line.startswith("https://there has no h200-sxm/2026-03-01-0123abcd-000000000000.zip")
    assert line.endswith(", and 1499 more files are missing")
