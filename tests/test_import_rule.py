"""Test which modules import which: no package imports upward, and commands import only what they need."""

import ast
import json
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain

import pytest

from tests.helpers.command import environment
from tests.helpers.paths import ROOT, beside

SUB_ROOMS = tomllib.loads(beside(__file__, "rooms.toml"))
ROOMS = SUB_ROOMS.pop("kernrec")


class Imports:
    """Imports between the modules of kernrec, read from the source. Names omit the leading `kernrec.`."""

    def __init__(self) -> None:
        self.paths = {}
        for path in sorted((ROOT / "kernrec").rglob("*.py")):
            parts = path.relative_to(ROOT / "kernrec").with_suffix("").parts
            is_package = parts[-1] == "__init__" and len(parts) > 1
            self.paths[".".join(parts[:-1] if is_package else parts)] = path
        self.edges: list[tuple[str, str, int]] = []
        for module, path in self.paths.items():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                self.edges += [(module, name, node.lineno) for name in self._targets(node)]

    def _targets(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            return []
        return [self._module(name) for name in names if name.split(".")[0] == "kernrec"]

    def _module(self, name: str) -> str:
        """Return the module of an imported name: the name itself, or the module that defines it."""
        inner = name.removeprefix("kernrec").removeprefix(".")
        while inner and inner not in self.paths:
            inner = inner.rpartition(".")[0]
        return inner or "__init__"

    def sub_rooms(self, room: str) -> set[str]:
        return {folder.name for folder in (ROOT / "kernrec" / room).iterdir() if (folder / "__init__.py").is_file()}


@pytest.fixture(scope="module")
def imports():
    return Imports()


def levels(text: str) -> dict[str, int]:
    return {name: number for number, line in enumerate(text.strip().splitlines()) for name in line.split()}


def upward(imports: Imports, level_of: dict[str, int], room: str | None = None) -> list[str]:
    """Return the imports between packages, or between folders of a package, that do not go to a lower layer."""

    def place(module: str) -> str | None:
        names = module.split(".")
        if room is None:
            return names[0]
        if names[0] != room:
            return None
        return names[1] if len(names) > 1 and names[1] in level_of else "..."

    faults = []
    for importer, imported, line in imports.edges:
        source, target = place(importer), place(imported)
        if source is None or target is None or source == target:
            continue
        if level_of[target] <= level_of[source]:
            faults.append(f"{imports.paths[importer].relative_to(ROOT)}:{line}: {source} imports {target} ({imported})")
    return faults


def test_every_package_has_an_import_rule(imports):
    assert {module.split(".")[0] for module in imports.paths} == set(levels(ROOMS))
    for room, text in SUB_ROOMS.items():
        assert imports.sub_rooms(room) == set(levels(text)) - {"..."}
    without = set(levels(ROOMS)) - set(SUB_ROOMS) - {"kernel"}  # the library's folders hold kernels, not modules
    assert not set(chain.from_iterable(imports.sub_rooms(r) for r in without if (ROOT / "kernrec" / r).is_dir()))


def test_no_package_imports_upward(imports):
    assert upward(imports, levels(ROOMS)) == []


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_no_subpackage_imports_upward(imports, room):
    assert upward(imports, levels(SUB_ROOMS[room]), room) == []


def test_tools_import_no_tests():
    """A tool that imports tests could not run without the tests."""
    importing = []
    for path in sorted((ROOT / "tools").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            importing += [f"{path.name}:{name}" for name in names if name.split(".")[0] == "tests"]
    assert importing == []


def test_modules_have_no_import_cycles(imports):
    graph: dict[str, set[str]] = {module: set() for module in imports.paths}
    for importer, imported, _ in imports.edges:
        graph[importer].add(imported)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


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
    "list workloads": TYPER | {"numpy"},
}
"""Maps a command line to the packages that it may import, besides the standard library and kernrec."""

PRINT_LOADED = """
import json, sys
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""
NOT_NEEDED = {
    "kernrec.compile", "kernrec.emit.tuned_tables", "kernrec.interop.read_results", "multiprocessing", "numpy.ma",
}  # fmt: skip
"""Modules that no query may import. Together the modules would take a quarter of a command's time."""


@cache
def installed() -> set[str]:
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
    subprocess.run([sys.executable, "-c", fill], capture_output=True, check=True, env=environment())  # fill the cache
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
