"""Test that a query needs only NumPy, and that every other library is imported on first use.

The first query after an installation reads the shipped database through DuckDB and caches it; these tests are about all
later queries.
"""

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.helpers.command import environment

QUERY = 'kernrec.recommend("matmul", "h200", m=4096, n=4096, k=4096)'
TYPER = {"annotated_doc", "shellingham", "typer", "typing_extensions"}
"""Typer and the packages that it imports."""

COMMANDS = {
    # Typer draws its help with Rich, which imports attrs if attrs is installed.
    "--help": TYPER | {"attr", "attrs", "markdown_it", "mdurl", "pygments", "rich"},
    "--version": TYPER,
    "recommend --op matmul --gpu h200 --shape m=512,n=512,k=512": TYPER | {"numpy"},
    "recommend --op matmul --gpu h200 --shape m=512,n=512,k=512 --json": TYPER | {"numpy"},
    # Uses the trained model that ships.
    "recommend --op matmul --gpu a100 --dtype f16 --shape m=512,n=512,k=512": TYPER | {"numpy"},
    "explain --op matmul --gpu h200 --shape m=512,n=512,k=512": TYPER | {"numpy"},
    "recommend --op matmull --gpu h200": TYPER | {"numpy"},
    "list gpus": TYPER | {"numpy"},
    "list ops": TYPER | {"numpy"},
    "list kernels": TYPER | {"numpy"},
}
"""Maps a command line to the packages that it may import, besides the standard library and kernrec."""

PRINT_LOADED = """
import json, sys
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""
NOT_NEEDED = {
    "kernrec.compile", "kernrec.emit.tuned_tables", "kernrec.interop.read_results", "multiprocessing", "numpy.ma",
}  # fmt: skip
"""Modules that no query may import; together they would take a quarter of a command's time."""


@cache
def installed() -> set[str]:
    """Return the packages of this environment, except kernrec."""
    return packages_distributions().keys() - {"kernrec"}


def libraries(code: str) -> set[str]:
    """Return the installed packages, except kernrec, that a new process has imported after running `code`."""
    command = [sys.executable, "-c", code + PRINT_LOADED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    return installed() & set(json.loads(done.stderr.splitlines()[-1]))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Use a separate cache: other tests query edited kernels of the same names, which would replace shipped entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNREC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def at_start():
    """Return the modules that a process of this environment imports before its first line."""
    fill = (
        f"import kernrec\n{QUERY}\nfrom kernrec.cli.app import run\nfor line in {list(COMMANDS)!r}: run(line.split())"
    )
    subprocess.run([sys.executable, "-c", fill], capture_output=True, check=True, env=environment())  # fills the cache
    return libraries("")


def test_package_import_loads_no_other_module(at_start):
    assert libraries("import kernrec") == at_start


def test_query_imports_only_numpy(at_start):
    assert libraries(f"import kernrec\n{QUERY}") - at_start == {"numpy"}


@pytest.mark.parametrize("line", COMMANDS)
def test_command_imports_only_what_it_needs(at_start, line):
    code = f"from kernrec.cli.app import run\nrun({line.split()!r})"
    assert libraries(code) - at_start <= COMMANDS[line]


@pytest.mark.usefixtures("at_start")
def test_query_imports_no_compilers_and_no_foreign_formats():
    line = "recommend --op matmul --gpu h200 --shape m=512,n=512,k=512 --json"
    code = f"import sys\nfrom kernrec.cli.app import run\nrun({line.split()!r})\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "kernrec.recommender.recommender" in loaded
    assert not loaded & NOT_NEEDED
