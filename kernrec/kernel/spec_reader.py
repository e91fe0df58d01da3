"""Reads a `kernel.toml` and its CUDA source into a `Kernel`; an error is one line that names file and key."""

import copyreg
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.config_list import listed_configs
from kernrec.kernel.declared_problem import Declared, declared_problem
from kernrec.kernel.expression import Expression, expected_name, is_identifier, parse
from kernrec.kernel.expression_reader import ExpressionReader
from kernrec.kernel.image_layout import ImageLayout
from kernrec.kernel.launch_limits import launch_limits
from kernrec.kernel.launch_reader import LaunchReader, LaunchScope
from kernrec.kernel.source_files import fingerprint, kernel_hash, read_source, read_toml
from kernrec.kernel.spec import (
    LIMITS,
    WORKSPACE_BYTES,
    Kernel,
    Tunable,
    Workspace,
)
from kernrec.kernel.toml_table import C_IDENTIFIER, Table
from kernrec.kernel.triton_function import triton_function
from kernrec.op import Op, find_op

_MOST_TUNABLES = 32
_MOST_VALUES = 256
_FACTS = ("dtype", "layout", "dtype_bytes", "sm")


def load_kernel(path: Path, data: dict[str, Any] | None = None) -> Kernel:
    """The kernel that the spec file `path` describes; its source is in the same folder.

    Args:
        path: The `kernel.toml`.
        data: Its content, if it has been parsed already.

    Raises:
        UsageError: The file cannot be read, is not TOML, or does not describe a kernel.
    """
    where = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    if data is None:
        data = read_toml(path, where)
    fingerprint(data, path.parent, where)
    return _Reader(where, data, path.parent).kernel()


def kernel_from(data: Mapping[str, Any], where: str, source: str) -> Kernel:
    """The kernel of a spec that has already been read (`Kernel.spec`) and its source; errors begin with `where`."""
    return _Reader(where, dict(data), None, source).kernel()


def _pickled(kernel: Kernel) -> tuple[Any, ...]:
    """How a kernel is pickled: as spec and source, because its functions cannot be pickled."""
    return kernel_from, (dict(kernel.spec), kernel.name, kernel.source)


copyreg.pickle(Kernel, _pickled)


def _op_names(op: Op) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """An op's dimensions as given, the derived ones, and the names of its tensors, in whatever dtype."""
    ones = {dim.name: 1 for dim in op.dims}
    named = [op.named(ones | op.late, dtype) for dtype in op.dtypes]
    derived = tuple(name for name in named[0] if name not in ones)
    tensors = frozenset(name for names in named for name in op.shapes({**names, **ones}, op.layouts[0]))
    return tuple(ones), derived, tensors


class _Reader:
    """Builds a `Kernel` from the parsed file."""

    def __init__(self, where: str, data: dict[str, Any], folder: Path | None, text: str = "") -> None:
        self.where = where
        self.folder = folder  # None: the source is `text`
        self.text = text
        self.top = Table(where, data)
        self.expressions = ExpressionReader(where)
        self.images: Mapping[str, ImageLayout] = {}

    def kernel(self) -> Kernel:
        top = self.top
        name = top.string("name")
        if not is_identifier(name):
            raise top.fail("name", "lower-case letters, digits and _", name)
        declared = self.declared(name)
        self.images = declared.images if declared else {}
        op = declared.op if declared else self.known_op()
        dtypes = op.dtypes if declared else top.names("dtypes", op.dtypes)
        layouts = op.layouts if declared else top.names("layouts", op.layouts)
        min_sm = top.take("min_sm", int, "a compute capability such as 75", 75)
        dtype_min_sm = self.dtype_min_sm(dtypes, min_sm)
        description = top.string("description", "")
        source_name, source = self.source()
        self.dims, derived, tensors = _op_names(op)
        self.given = (*self.dims, *derived, *_FACTS)

        tunables = self.tunables()
        macros = self.macros()
        listed = listed_configs(top, {tunable.name: tunable.values for tunable in tunables})
        for column in listed.further if listed else ():
            self.new_name(f"{self.where}: [configs]", column, self.given)
        levers = [*(tunable.name for tunable in tunables), *(listed.further if listed else ())]
        lets = self.lets(levers)
        launch_names = frozenset((*self.given, *levers, *lets))
        written = self.top.take("constraints", list, "a list of expressions", [])
        constraints = tuple(
            self.expressions.read(f"constraints[{i}]", text, launch_names.union(LIMITS))
            for i, text in enumerate(written)
        )
        workspaces = self.workspaces(launch_names, tensors)
        pointers = (*tensors, *(workspace.name for workspace in workspaces))
        probe_names = self.known_before_the_problem(levers, lets)
        tables = top.take("launch", list, "[[launch]] tables")
        if not tables:
            raise UsageError(f"{self.where}: launch: expected at least one [[launch]]")
        launch_reader = LaunchReader(
            self.expressions, LaunchScope(launch_names, probe_names, self.dims, pointers, self.images, source)
        )
        launches = tuple(launch_reader.read(f"{self.where}: launch[{i}]", table) for i, table in enumerate(tables))
        triton = triton_function(
            top,
            source_name,
            [(launch.entry, len(launch.arguments)) for launch in launches],
            lambda key, text: self.expressions.read(key, text, probe_names),
        )
        top.done()
        return Kernel(
            name=name,
            op=op.name,
            dtypes=dtypes,
            layouts=layouts,
            min_sm=min_sm,
            dtype_min_sm=dtype_min_sm,
            description=description,
            source_name=source_name,
            source=source,
            hash=kernel_hash(top.data, source),
            tunables=tunables,
            lets=lets,
            constraints=constraints,
            implied=(
                # A spec that does not use a late dimension of its op (`Dim.late`) supports only its default.
                *(parse(f"{name} == {value}") for name, value in op.late.items() if name not in self.expressions.named),
                *(constraint for launch in launches for constraint in launch_limits(launch)),
            ),
            launches=launches,
            workspaces=workspaces,
            definition=op,
            spec=top.data,
            macros=macros,
            initial_values=declared.initial_values if declared else {},
            constants=declared.constants if declared else {},
            images=self.images,
            inouts=declared.inouts if declared else frozenset(),
            references=declared.references if declared else {},
            tolerance=declared.tolerance if declared else None,
            listed=listed,
            triton=triton,
        )

    def known_op(self) -> Op:
        try:
            return find_op(self.top.string("op"))
        except UsageError as error:
            raise UsageError(f"{self.where}: op: {error}") from None

    def declared(self, name: str) -> Declared | None:
        """The problem that the spec declares for itself, if it names no op."""
        data = self.top.take("problem", dict, "a table", None)
        if data is None:
            return None
        if "op" in self.top.data:
            raise UsageError(f"{self.where}: op and [problem] were both given; a kernel has one of them")
        return declared_problem(Table(f"{self.where}: [problem]", data), name)

    def macros(self) -> dict[str, str]:
        """Macros that are defined for every config."""
        macros = {}
        for name, value in self.top.take("defines", dict, "a table of macros", {}).items():
            if not C_IDENTIFIER.fullmatch(name) or not isinstance(value, str | int) or "\n" in str(value):
                raise self.top.fail(f"defines.{name}", "NAME = number or text", value)
            macros[name] = str(value)
        return macros

    def dtype_min_sm(self, dtypes: Collection[str], min_sm: int) -> dict[str, int]:
        table = self.top.take("dtype_min_sm", dict, "a table of dtype = compute capability", {})
        for dtype, sm in table.items():
            if dtype not in dtypes:
                raise UsageError(f"{self.where}: dtype_min_sm: {unknown('dtype', dtype, dtypes)}")
            if type(sm) is not int or sm <= min_sm:
                raise self.top.fail(f"dtype_min_sm.{dtype}", f"a compute capability above min_sm = {min_sm}", sm)
        return dict(table)

    def source(self) -> tuple[str, str]:
        name = self.top.string("source")
        if Path(name).name != name or name in {"", ".", ".."} or "\\" in name:
            raise self.top.fail("source", "the name of a file in the same folder", name)
        if self.folder is None:
            return name, self.text
        return name, read_source(self.folder / name)

    def tunables(self) -> tuple[Tunable, ...]:
        tables = self.top.take("tunables", dict, "a table of tunables")
        if not 1 <= len(tables) <= _MOST_TUNABLES:
            raise self.top.fail("tunables", f"1 to {_MOST_TUNABLES} tunables", len(tables))
        tunables = []
        for name, data in tables.items():
            table = Table(f"{self.where}: [tunables] {name}", data)
            if not is_identifier(name) and is_identifier(name.lower()) and name != name.upper():
                raise UsageError(f'{table.where}: {expected_name(name)} with define = "{name}"')
            self.new_name(table.where, name, self.given)
            values = table.take("values", list, "a list of integers")
            whole = all(type(value) is int and abs(value) < 2**31 for value in values)
            if not whole or not 1 <= len(values) <= _MOST_VALUES or len(set(values)) < len(values):
                raise table.fail("values", f"1 to {_MOST_VALUES} different integers below 2**31", values)
            meaning = table.string("meaning", "")
            launch = table.take("launch", bool, "true or false", False)
            define = table.string("define", None)
            if define is not None and not C_IDENTIFIER.fullmatch(define):
                raise table.fail("define", "the name of a macro", define)
            table.done()
            tunables.append(Tunable(name, tuple(values), meaning, launch, define))
        return tuple(tunables)

    def new_name(self, where: str, name: str, used: Iterable[str]) -> None:
        if not is_identifier(name):
            raise UsageError(f"{where}: {expected_name(name)}")
        if name in used or name in LIMITS or name in _FACTS:
            raise UsageError(f"{where}: the name {name!r} is taken")

    def lets(self, levers: list[str]) -> dict[str, Expression]:
        lets: dict[str, Expression] = {}
        names = {*self.given, *levers}
        given = self.top.take("let", dict, "a table of expressions", {})
        for index, (name, text) in enumerate(given.items()):
            key = f"[let] {name}"
            self.new_name(f"{self.where}: {key}", name, names)
            if later := [n for n in list(given)[index:] if n not in names and re.search(rf"\b{n}\b", str(text))]:
                raise UsageError(
                    f"{self.where}: {key}: {str(text)!r:.60} needs {later[0]}, which is not defined before it"
                )
            lets[name] = self.expressions.read(key, text, names)
            names.add(name)
        return lets

    def known_before_the_problem(self, levers: list[str], lets: Mapping[str, Expression]) -> frozenset[str]:
        known = {*levers, *_FACTS}
        for name, let in lets.items():
            if let.names <= known:
                known.add(name)
        return frozenset(known)

    def workspaces(self, names: Collection[str], tensors: Collection[str]) -> tuple[Workspace, ...]:
        workspaces: list[Workspace] = []
        for i, data in enumerate(self.top.take("workspace", list, "[[workspace]] tables", [])):
            table = Table(f"{self.where}: workspace[{i}]", data)
            name = table.string("name")
            self.new_name(f"{table.where}: name", name, (*tensors, *(workspace.name for workspace in workspaces)))
            dtype = table.string("dtype")
            if dtype not in WORKSPACE_BYTES:
                raise UsageError(f"{table.where}: {unknown('dtype', dtype, WORKSPACE_BYTES)}")
            elements = self.expressions.read("elements", self.required(table, "elements"), names, table.where)
            when = self.expressions.condition(table, names)
            table.done()
            workspaces.append(Workspace(name, dtype, elements, when))
        return tuple(workspaces)

    def required(self, table: Table, key: str) -> Any:
        return table.take(key, object, "an expression")
