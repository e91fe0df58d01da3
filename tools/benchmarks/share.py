"""CPU time, memory and bytes of pushing measurements to a place and pulling them, at several numbers of rows.

The place is a folder, or with `--s3` a bucket of an S3 server on this machine (moto, which is written in Python:
`copy_cpu_s` is the same bytes put and read again with nothing else done, by this process). Times are of processors, as
in `tools/bench.py store`. `again` is a push and a pull with nothing new; `more` a push of 1,000 more rows.
"""

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer
from front import Table

from benchmarks.object_servers import bucket
from kernrec.store.keys import Signer, make_key
from kernrec.store.share import Selection
from kernrec.store.share.object_store import place_of
from kernrec.store.share.pull import pull
from kernrec.store.share.push import push

from .store import _GPU, RECORDED, fill
from .timing import peak_mb, spent

_MORE = 1000


def run(rows: Annotated[list[int], typer.Option()] = [10_000], s3: bool = False) -> None:  # noqa: B006
    """Print a row for each number of rows."""
    table = Table()
    for count in rows:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as name, _bucket() if s3 else _folder(name) as url:
            table.row(sharing(Path(name), count, url))


def sharing(folder: Path, rows: int, url: str) -> dict[str, Any]:
    """The cost of a push of `rows` measurements, and of a pull by somebody else.

    Args:
        folder: for the databases.
        rows: a multiple of 1000.
        url: of an empty place.
    """
    own, place = folder / "own.duckdb", place_of(url)
    fill(own, rows, RECORDED)
    make_key(folder / "key")
    signer = Signer.of(folder / "key")
    done: dict[str, Any] = {"rows": rows, "place": url.partition("://")[0] if "://" in url else "folder"}

    def pushing() -> None:
        left = push(place, own, Selection(), signer, agree=lambda *_: True)
        done.setdefault("pushed", left[0] if left else 0)

    def pulling() -> None:
        report = pull(place, untrusted=True)
        done.setdefault("pulled", report.measurements)

    with _at(folder / "alice"):
        _timed(done, "push", pushing)
        _timed(done, "push_again", pushing)
        fill(own, _MORE, RECORDED | {"session": "'more' || i"})
        _timed(done, "push_more", pushing)
    names = place.names(_GPU)
    with _at(folder / "bob"):
        _timed(done, "pull", pulling)
        _timed(done, "pull_again", pulling)
    content = {name: b"".join(place.read(name, 2**30)) for name in names}
    done["sent_mb"] = round(sum(map(len, content.values())) / 1e6, 1)

    def copy() -> None:
        file = folder / "file"
        for name, data in content.items():
            file.write_bytes(data)
            place.write(f"{name[:-16]}{'0' * 12}.zip", file)
            for _ in place.read(name, 2**30):
                pass

    _timed(done, "copy", copy)
    done["push_and_pull_mb"] = round(peak_mb())
    done["check_mb"] = round(peak_mb(resource.RUSAGE_CHILDREN))
    return done


def _timed(done: dict[str, Any], name: str, call: Callable[[], None]) -> None:
    """Add the seconds of processors that something takes, here and in its children."""
    done[f"{name}_cpu_s"] = spent(call).cpu


@contextmanager
def _at(home: Path) -> Iterator[None]:
    """On a machine of their own."""
    with patch.dict(os.environ, {"XDG_DATA_HOME": str(home / "data"), "XDG_CONFIG_HOME": str(home / "config")}):
        os.environ.pop("KERNREC_DB", None)
        yield


@contextmanager
def _folder(name: str) -> Iterator[str]:
    (path := Path(name) / "team").mkdir()
    yield str(path)


@contextmanager
def _bucket() -> Iterator[str]:
    """A bucket of an S3 server of this machine."""
    with bucket(os.environ) as variables, patch.dict(os.environ, variables):
        yield "s3://team/kernrec"
