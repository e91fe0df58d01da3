"""Test that packages import only packages on lower levels, and that no modules import each other in a circle.

Every import counts, also inside functions and under `TYPE_CHECKING`.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import pytest

from tests.helpers.paths import ROOT

ROOMS = """
    __init__ __main__
    cli
    capture
    triton
    page run mcp emit
    checking
    cluster
    measure training
    recommender
    interop
    profile
    model
    compile
    store
    kernel
    gpu op ptx
    util
    errors paths version
"""
"""Levels of the modules and folders of kernrec/, from top to bottom. Names on one line do not import each other."""

SUB_ROOMS = {
    "measure": """
        ...
        campaign
        worker
        protocol
        device
    """,
    "model": """
        ...
        vendor
        search
        learn
        prior
    """,
    "ptx": """
        ...
        execution
        state
        analysis
        ir
    """,
    "recommender": """
        networks serving
        explain
        analyze
        ...
        estimate
    """,
    "store": """
        share
        intake
        ...
    """,
    "triton": """
        ...
        calls
    """,
}
"""Levels inside a package. `...` stands for the files outside its folders."""


class Imports:
    """Imports between the modules of kernrec, read from the source; names omit the leading `kernrec.`."""

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
        """Return the kernrec modules that a statement imports."""
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
        """Return the folders directly in a package."""
        return {folder.name for folder in (ROOT / "kernrec" / room).iterdir() if (folder / "__init__.py").is_file()}


@pytest.fixture(scope="module")
def imports():
    return Imports()


def levels(text: str) -> dict[str, int]:
    """Return the level number of each name."""
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


def test_every_package_has_a_rule(imports):
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
    """Tests import tools; the reverse would keep a tool from running without the tests."""
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
