"""Stand-ins for object stores that no package emulates: as much of their interface as kernrec's clients ask for.

The clients are the real ones. Of Google Cloud Storage it is the XML interface (object, precondition on the generation,
listing), of the Hugging Face Hub the interface of a data set's main branch with small files (no LFS, no Xet).
"""

import base64
import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_COMMIT = "0" * 40
DATA_SET = "datasets/team/kernrec"


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


class CloudStorage(StandIn):
    """Google Cloud Storage; the first part of a path is the bucket."""

    def do_PUT(self) -> None:
        """Put an object; with a generation of 0 only where there is none."""
        content = self.body()
        if self.headers.get("x-goog-if-generation-match") == "0" and self.name in self.files:
            self.reply(412)
            return
        self.files[self.name] = content
        self.reply(200, ETag='"x"')

    def do_GET(self) -> None:
        """An object, or the list of those whose names begin with a prefix."""
        asked_for = parse_qs(urlsplit(self.path).query)
        if "list-type" in asked_for:
            bucket, prefix = f"{self.name}/", asked_for.get("prefix", [""])[0]
            items = "".join(
                f"<Contents><Key>{escape(name.removeprefix(bucket))}</Key><Size>{len(content)}</Size>"
                '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag></Contents>'
                for name, content in sorted(self.files.items())
                if name.startswith(bucket + prefix)
            )
            page = f"<ListBucketResult><Name>x</Name>{items}<IsTruncated>false</IsTruncated></ListBucketResult>"
            self.reply(200, page.encode())
        elif self.name in self.files:
            self.reply(200, self.files[self.name], ETag='"x"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")
        else:
            self.reply(404)


class Hub(StandIn):
    """The Hugging Face Hub with one data set, `DATA_SET`, which is empty at first."""

    def do_POST(self) -> None:
        """Say how files are to be uploaded, or commit them."""
        lines = [json.loads(line) for line in self.body().splitlines()]
        if self.name == f"api/{DATA_SET}/preupload/main":
            how = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self._json({"files": [{"path": file["path"], **how} for file in lines[0]["files"]]})
        elif self.name == f"api/{DATA_SET}/commit/main":
            for line in lines:
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/{DATA_SET}/commit/{_COMMIT}"
            self._json({"commitUrl": url, "commitOid": _COMMIT, "success": True})
        else:
            self.reply(404)

    def do_GET(self) -> None:
        """What the data set is, its files below a folder, or a part of a file."""
        tree, resolved = f"api/{DATA_SET}/tree/main", f"{DATA_SET}/resolve/main/"
        if self.name == f"api/{DATA_SET}":
            self._json({"id": DATA_SET.partition("/")[2], "sha": _COMMIT, "siblings": [], "tags": []})
        elif self.name == tree or self.name.startswith(f"{tree}/"):
            folder = self.name.removeprefix(tree).strip("/")
            names = {name for name in self.files if name.startswith(f"{folder}/" if folder else "")}
            folders = {name.rpartition("/")[0] for name in names} - {folder, ""}
            if names or not folder:
                self._json([self._about(name) for name in sorted(names | folders)])
            else:
                self.reply(404, X_Error_Code="EntryNotFound")
        elif (content := self.files.get(self.name.removeprefix(resolved))) is not None:
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1)
            part = content[start : end + 1]
            self.reply(
                206, part, ETag='"x"', X_Repo_Commit=_COMMIT, Content_Range=f"bytes {first}-{end}/{len(content)}"
            )
        else:
            self.reply(404, X_Error_Code="EntryNotFound" if self.name.startswith(resolved) else "RepoNotFound")

    def _about(self, name: str) -> dict[str, object]:
        content = self.files.get(name)
        if content is None:
            return {"type": "directory", "path": name, "oid": _COMMIT}
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _json(self, value: object) -> None:
        self.reply(200, json.dumps(value).encode(), Content_Type="application/json")
