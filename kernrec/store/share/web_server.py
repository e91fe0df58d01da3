"""Read a place from a web server, which lists the files in `index.json`.

A read fails if the server sends no byte for 30 s. Redirects are followed only on the same host: the user did not agree
to another host, and a redirect could reach servers that are private to this machine's network.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from kernrec.errors import KernrecError, UsageError
from kernrec.store.share.manifest import LARGEST_DOCUMENT, listed, parsing
from kernrec.store.share.place import INDEX, MOST_NAMES, MissingFileError, bundle_names, checked_name

SILENCE_S = 30.0
"""Seconds without a byte after which a read fails."""
_TRIES, _PAUSE_S = 3, 1.0
_PIECE = 2**16
_TRANSIENT = (429, 500, 502, 503, 504)


class _SameHost(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """See `HTTPRedirectHandler`; raises `UsageError` for another host, port or scheme."""
        here, there = urlsplit(req.full_url), urlsplit(newurl)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            raise UsageError(
                f"{here.scheme}://{here.netloc} redirects to another host, {there.scheme}://{there.netloc}, which is"
                " not followed; name that one as the place if you trust it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class WebServer:
    """A read-only place below a URL of `http://` or `https://`."""

    def __init__(self, url: str) -> None:
        """Prepare a place, without network access."""
        self.title = url
        self._host = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
        self._opener = urllib.request.build_opener(_SameHost)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`."""
        about = f"{checked_name(name)} of {self.title}"
        try:
            with self._opened(name) as response:
                size = int(response.headers.get("Content-Length") or -1)
                if size > most:
                    raise UsageError(f"{about} is larger than {most} bytes")
                received = 0
                while piece := response.read1(_PIECE):
                    received += len(piece)
                    if received > (most if size < 0 else size):
                        raise UsageError(f"{about} is larger than stated, or than {most} bytes")
                    yield piece
            if received < size:
                raise KernrecError(f"{about} was cut short by its server")
        except TimeoutError:
            raise KernrecError(f"{self.title}: {self._host} sent nothing for {SILENCE_S:g} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise KernrecError(
                f"{about} cannot be read: {str(error).splitlines()[0] if str(error) else error}"
            ) from None

    def _opened(self, name: str) -> HTTPResponse:
        """Request a file, and return the response."""
        for tried in range(1, _TRIES + 1):
            try:
                response: HTTPResponse = self._opener.open(f"{self.title}/{name}", timeout=SILENCE_S)
                return response
            except HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise MissingFileError(f"{self.title} has no {name}") from None
                if error.code in (401, 403):
                    raise KernrecError(f"{self.title}: access to {name} is denied") from None
                if error.code not in _TRANSIENT or tried == _TRIES:
                    raise KernrecError(f"{self.title}: {name}: {error.code} {error.reason}") from None
            except URLError as error:
                if isinstance(error.reason, TimeoutError):
                    raise error.reason from None
                if tried == _TRIES or not isinstance(error.reason, ConnectionError):
                    raise KernrecError(f"{self.title}: {self._host} does not answer") from None
            time.sleep(_PAUSE_S * tried)
        raise AssertionError

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`."""
        raise UsageError(f"{self.title} can only be read; name the folder or bucket that its files are in")

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        content = b"".join(self.read(INDEX, LARGEST_DOCUMENT))
        with parsing(f"{INDEX} of {self.title}", "a list of names"):
            names = listed(json.loads(content), "names", MOST_NAMES)
            return bundle_names((name for name in names if isinstance(name, str)), under)
