"""Open places by URL: object stores (`s3://`, `gs://`) through obstore, web servers, and folders.

URLs and kernrec's settings never contain credentials. obstore reads credentials from environment variables, such as
`AWS_ACCESS_KEY_ID` and `GOOGLE_APPLICATION_CREDENTIALS`, or from the IAM role of a cloud machine.

On a web server, the file `index.json` lists the shared files. kernrec follows redirects only on the same host,
because a redirect to another host could reach private servers in the user's network.
"""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from kernrec.errors import KernrecError, UsageError
from kernrec.store.share.manifest import LARGEST_DOCUMENT, listed, parsing
from kernrec.store.share.place import (
    INDEX,
    MOST_NAMES,
    Folder,
    MissingFileError,
    Place,
    bounded,
    bundle_names,
    checked_name,
    stays,
)
from kernrec.util.optional import import_optional

SILENCE_S = 30.0
"""Seconds without data after which a read fails."""
_TRIES, _PAUSE_S = 3, 1.0
_TRANSIENT = (429, 500, 502, 503, 504)


class _SameHost(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Raise `UsageError` if a redirect leads to another host, port or scheme."""
        here, there = urlsplit(req.full_url), urlsplit(newurl)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            raise UsageError(
                f"{here.scheme}://{here.netloc} redirects to another host, {there.scheme}://{there.netloc}, which is"
                " not followed; name that one as the place if you trust it"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class WebServer:
    def __init__(self, url: str) -> None:
        self.title = url
        self._host = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
        self._opener = urllib.request.build_opener(_SameHost)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        about = f"{checked_name(name)} of {self.title}"
        try:
            with self._opened(name) as response:
                length = response.headers.get("Content-Length")
                yield from bounded(response.read1, most, about, int(length) if length else None)
        except TimeoutError:
            raise KernrecError(f"{self.title}: {self._host} sent nothing for {SILENCE_S:g} s") from None
        except (OSError, HTTPException, ValueError) as error:
            raise KernrecError(
                f"{about} cannot be read: {str(error).splitlines()[0] if str(error) else error}"
            ) from None

    def _opened(self, name: str) -> HTTPResponse:
        """Request a file, and return the response. Retry after temporary errors."""
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
        raise UsageError(f"{self.title} can only be read; name the folder or bucket that its files are in")

    def names(self) -> list[str]:
        content = b"".join(self.read(INDEX, LARGEST_DOCUMENT))
        with parsing(f"{INDEX} of {self.title}", "a list of names"):
            names = listed(json.loads(content), "names", MOST_NAMES)
            return bundle_names(name for name in names if isinstance(name, str))


SCHEMES = ("s3", "gs", "https", "http")
_WEB = ("https", "http")
_CLIENT = {"timeout": "10m", "read_timeout": f"{SILENCE_S:g}s", "connect_timeout": "10s", "allow_http": True}
_RETRY = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}


def checked_url(text: str) -> str:
    """Return the URL of a shared folder or server in a uniform form. The path of a folder becomes absolute.

    Raise `UsageError` if the text is not a URL, has an unknown scheme, or contains a user or password.
    """
    scheme, separator, _ = text.partition("://")
    if not text.strip():
        raise UsageError("no place was given; pass a folder or a URL such as s3://team/kernrec")
    if not separator:
        if (start := text.partition(":")[0]) in SCHEMES and start != text:
            raise UsageError(f"{text[:80]!r} is not a URL such as {start}://team/kernrec")
        return str(Path(text).expanduser().absolute())
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname)
    except ValueError:
        named = False
    if scheme == "hf":
        raise UsageError(f"{text[:80]}: clone the data set with git and pass its folder")
    if scheme not in SCHEMES:
        raise UsageError(
            f"{text[:80]}: unknown scheme; pass a folder, or {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    if not named or not text.isprintable() or parts.query or parts.fragment:
        raise UsageError(f"{text[:80]!r} is not a URL such as {scheme}://team/kernrec")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the URL contains a user or password, which others on this machine could read; use the store's credentials"
        )
    return text.rstrip("/")


def place_of(url: str) -> Place:
    """Return the store of shared bundles at a URL or at the path of a folder.

    Raises:
        KernrecError: The client library for the scheme is not installed.
        UsageError: The URL is not valid, or the folder does not exist.
    """
    url = checked_url(url)
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or "://" not in url:
        path = Path(url)
        if not path.is_dir():
            raise UsageError(f"folder {url} does not exist; create it with `mkdir`, or mount its disk")
        return Folder(path)
    return WebServer(url) if scheme in _WEB else ObjectStore(url)


class ObjectStore:
    def __init__(self, url: str) -> None:
        self._obstore = import_optional("obstore", f"a place of {url.partition('://')[0]}://", "remote")
        stores = import_optional("obstore.store", "a place", "remote")
        self.title = url
        with _reaching(url, url):
            self._store = stores.from_url(url, client_options=_CLIENT, retry_config=_RETRY)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        with _reaching(self.title, checked_name(name)):
            result = self._obstore.get(self._store, name)
            stream = iter(result.stream())
            yield from bounded(lambda _: bytes(next(stream, b"")), most, f"{name} of {self.title}", result.meta["size"])

    def write(self, name: str, source: Path) -> None:
        mode = "create" if stays(checked_name(name)) else "overwrite"
        with _reaching(self.title, name):
            try:
                self._obstore.put(self._store, name, source, mode=mode, use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return

    def names(self) -> list[str]:
        with _reaching(self.title, "its files"):
            try:
                pages = self._obstore.list(self._store)
                return bundle_names(str(each["path"]) for page in pages for each in page)
            except self._obstore.exceptions.BaseError as error:
                if "404" not in str(error):
                    raise
                raise UsageError(f"the bucket of {self.title} does not exist") from None


@contextmanager
def _reaching(title: str, name: str) -> Iterator[None]:
    try:
        yield
    except KernrecError:
        raise
    except FileNotFoundError:
        raise MissingFileError(f"{title} has no {name}") from None
    except Exception as error:  # Network clients raise many types of errors from their transport layer.
        if type(error).__name__ in ("UnauthenticatedError", "PermissionDeniedError"):
            raise KernrecError(f"{title}: no access to {name}; check your credentials") from None
        raise KernrecError(f"{title}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = re.sub(r"\?[^\s\"']*", "", " ".join(str(error).split()))
    if "error sending request" in text and (server := re.search(r"https?://[^/\s]+", text)):
        return f"{server[0]} does not answer"
    text = re.sub(r"^Generic \w+ error: |Error performing (?!GET|PUT)[\w ]+: | Debug source: .*", "", text)
    return text[:200].rstrip(" :") or type(error).__name__
