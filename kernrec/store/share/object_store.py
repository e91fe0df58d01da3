"""Open places by URL: `s3://` and `gs://` through obstore, web servers and folders.

URLs and kernrec's settings never contain credentials. Object stores read credentials from the same sources as their own
tools: environment variables such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, or
the machine's role.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from kernrec.errors import KernrecError, UsageError
from kernrec.store.share.place import Folder, MissingFileError, Place, bundle_names, checked_name, stays
from kernrec.store.share.web_server import SILENCE_S, WebServer
from kernrec.util.optional import import_optional

SCHEMES = ("s3", "gs", "https", "http")
_WEB = ("https", "http")
_CLIENT = {"timeout": "10m", "read_timeout": f"{SILENCE_S:g}s", "connect_timeout": "10s", "allow_http": True}
_RETRY = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_CHUNK = 2**20


def checked_url(text: str) -> str:
    """Return the URL of a place; a folder's path is made absolute.

    Raises:
        UsageError: The scheme is unknown, or the URL contains a password.
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
    """Return the place at a URL or in a folder.

    Raises:
        KernrecError: The client library is not installed.
        UsageError: The URL has an unknown scheme, or the folder does not exist.
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
    """A place in a bucket, or in a folder of a bucket."""

    def __init__(self, url: str) -> None:
        """Prepare the client, without network access."""
        self._obstore = import_optional("obstore", f"a place of {url.partition('://')[0]}://", "remote")
        stores = import_optional("obstore.store", "a place", "remote")
        self.title = url
        with _reaching(url, url):
            self._store = stores.from_url(url, client_options=_CLIENT, retry_config=_RETRY)

    def read(self, name: str, most: int) -> Iterator[bytes]:
        """See `Place.read`."""
        with _reaching(self.title, checked_name(name)):
            result = self._obstore.get(self._store, name)
            if (size := result.meta["size"]) > most:
                raise UsageError(f"{name} of {self.title} is larger than {most} bytes")
            received = 0
            for piece in result.stream(_CHUNK):
                received += len(piece)
                if received > size:
                    raise UsageError(f"{name} of {self.title} is larger than its stated size")
                yield bytes(piece)

    def write(self, name: str, source: Path) -> None:
        """See `Place.write`. A file that never changes is written only if it does not exist."""
        mode = "create" if stays(checked_name(name)) else "overwrite"
        with _reaching(self.title, name):
            try:
                self._obstore.put(self._store, name, source, mode=mode, use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return

    def names(self, under: str = "") -> list[str]:
        """See `Place.names`."""
        with _reaching(self.title, "its files"), self._bucket():
            pages = self._obstore.list(self._store, under.rstrip("/") or None)
            return bundle_names((str(each["path"]) for page in pages for each in page), under)

    @contextmanager
    def _bucket(self) -> Iterator[None]:
        try:
            yield
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
    except Exception as error:  # Network clients raise many types of errors from their transport.
        if type(error).__name__ in ("UnauthenticatedError", "PermissionDeniedError"):
            raise KernrecError(f"{title}: no access to {name}; check your credentials") from None
        raise KernrecError(f"{title}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    text = re.sub(r"\?[^\s\"']*", "", " ".join(str(error).split()))
    if "error sending request" in text and (server := re.search(r"https?://[^/\s]+", text)):
        return f"{server[0]} does not answer"
    text = re.sub(r"^Generic \w+ error: |Error performing (?!GET|PUT)[\w ]+: | Debug source: .*", "", text)
    return text[:200].rstrip(" :") or type(error).__name__
