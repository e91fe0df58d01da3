"""Read a `kernel.toml` and the kernel's source into a `Kernel`."""

import copyreg
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.kernel.declared_problem import declared_problem
from kernrec.kernel.expression import Expression, expected_name, is_identifier, parse
from kernrec.kernel.launch_reader import LaunchReader, launch_limits
from kernrec.kernel.source_files import OPTION, fingerprint, kernel_hash, read_source, read_toml
from kernrec.kernel.spec import LIMITS, Kernel, Tunable, Workspace
from kernrec.kernel.toml_table import C_IDENTIFIER, Table, listed_configs, mentions
from kernrec.kernel.triton_function import triton_function
from kernrec.op import Op, find_op
from kernrec.op.dtype import ELEMENT_BYTES

_MOST_TUNABLES = 32
_MOST_VALUES = 256
_FACTS = ("dtype", "layout", "dtype_bytes", "sm")


def load_kernel(path: Path, data: dict[str, Any] | None = None) -> Kernel:
    """Return the kernel of a spec file, or of its parsed content `data`. Raise `UsageError` if the spec is invalid."""
    place = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    if data is None:
        data = read_toml(path, place)
    fingerprint(data, path.parent, place)
    return _Reader(place, data, path.parent).kernel()


def kernel_from(data: Mapping[str, Any], place: str, source: str) -> Kernel:
    """Create a `Kernel` from a parsed spec and its source. Error messages begin with `place`."""
    return _Reader(place, dict(data), None, source).kernel()


@lru_cache(maxsize=1)  # All tasks of a worker process usually have the same kernel.
def _unpickled(spec: str, name: str, source: str) -> Kernel:
    return kernel_from(json.loads(spec), name, source)


copyreg.pickle(Kernel, lambda kernel: (_unpickled, (json.dumps(kernel.spec), kernel.name, kernel.source)))


def _op_names(op: Op, declared: dict[str, Any] | None) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    if declared is not None:
        return tuple(dim.name for dim in op.dims), (), frozenset(declared["initial_values"])
    ones = {dim.name: 1 for dim in op.dims}
    named = [op.named(ones | op.late, dtype) for dtype in op.dtypes]
    derived = tuple(name for name in named[0] if name not in ones)
    tensors = frozenset(name for names in named for name in op.shapes({**names, **ones}, op.layouts[0]))
    return tuple(ones), derived, tensors


class _Reader:
    def __init__(self, place: str, data: dict[str, Any], folder: Path | None, text: str = "") -> None:
        """Prepare a reader. The source is a file in `folder`, or `text` if `folder` is None."""
        self.folder, self.text = folder, text
        self.top = Table(place, data)

    def kernel(self) -> Kernel:
        top = self.top
        name = top.string("name")
        if not is_identifier(name):
            raise top.fail("name", "lower-case letters, digits and _", name)
        op, declared = self.op(name)
        dtypes = top.names("dtypes", op.dtypes) if declared is None else op.dtypes
        layouts = top.names("layouts", op.layouts) if declared is None else op.layouts
        min_sm = top.take("min_sm", int, "a compute capability such as 75", 75)
        dtype_min_sm = self.dtype_min_sm(dtypes, min_sm)
        description = top.string("description", "")
        self.check_options()
        source_name, source = self.source()
        dims, derived, tensors = _op_names(op, declared)
        inputs = (*dims, *derived, *_FACTS)

        tunables = self.tunables(inputs)
        macros = self.macros()
        listed = listed_configs(top, {tunable.name: tunable.values for tunable in tunables})
        further = listed.further if listed else ()
        for column in further:
            _check_new(top.inner("[configs]", {}), column, inputs)
        levers = (*(tunable.name for tunable in tunables), *further)
        lets = self.lets((*inputs, *levers))
        names = frozenset((*inputs, *levers, *lets))
        rules = top.take("constraints", list, "a list of expressions", [])
        constraints = top.items("constraints", rules, names.union(LIMITS))
        workspaces = self.workspaces(names, tensors)
        static = {*levers, *_FACTS}
        for let_name, let in lets.items():
            if let.names <= static:
                static.add(let_name)
        tables = top.tables("launch", "[[launch]] tables")
        if not tables:
            raise top.error("launch: expected at least one [[launch]]")
        pointers = (*tensors, *(workspace.name for workspace in workspaces))
        reader = LaunchReader(source, names, static, dims, pointers, (declared or {}).get("images", {}))
        launches = tuple(map(reader.read, tables))
        called = [(launch.entry, len(launch.arguments)) for launch in launches]
        triton = triton_function(top, source_name, called, static)
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
                # A spec may be older than an optional dimension of its op. Then the kernel supports only the default.
                *(parse(f"{name} == {value}") for name, value in op.late.items() if name not in top.named),
                *(constraint for launch in launches for constraint in launch_limits(launch)),
            ),
            launches=launches,
            workspaces=workspaces,
            definition=op,
            spec=top.data,
            macros=macros,
            listed=listed,
            triton=triton,
            **(declared or {}),
        )

    def op(self, name: str) -> tuple[Op, dict[str, Any] | None]:
        """Return (op, None) if the spec names an op, or `declared_problem`'s result if the spec declares a problem."""
        data = self.top.take("problem", dict, "a table", None)
        if data is None:
            try:
                return find_op(self.top.string("op")), None
            except UsageError as error:
                raise self.top.error(f"op: {error}") from None
        if "op" in self.top.data:
            raise self.top.error("op and [problem] are both given; give only one")
        return declared_problem(self.top.inner("[problem]", data), name)

    def macros(self) -> dict[str, str]:
        macros = {}
        for name, value in self.top.take("defines", dict, "a table of macros", {}).items():
            if not C_IDENTIFIER.fullmatch(name) or not isinstance(value, str | int) or "\n" in str(value):
                raise self.top.fail(f"defines.{name}", "NAME = number or text", value)
            macros[name] = str(value)
        return macros

    def dtype_min_sm(self, dtypes: Collection[str], min_sm: int) -> dict[str, int]:
        table = self.top.take("dtype_min_sm", dict, "a table of dtype = compute capability", {})
        self.top.check("dtype_min_sm", "dtype", table, dtypes)
        for dtype, sm in table.items():
            if type(sm) is not int or sm <= min_sm:
                raise self.top.fail(f"dtype_min_sm.{dtype}", f"a compute capability above min_sm = {min_sm}", sm)
        return dict(table)

    def check_options(self) -> None:
        options = self.top.take("options", list, "a list of options of nvcc", [])
        if not all(isinstance(each, str) and OPTION.fullmatch(each) for each in options):
            raise self.top.fail("options", "-std=c++20 or -use_fast_math", options)

    def source(self) -> tuple[str, str]:
        name = self.top.string("source")
        if Path(name).name != name or name in {"", ".", ".."} or "\\" in name:
            raise self.top.fail("source", "the name of a file in the same folder", name)
        include = self.top.take("include", list, "a list of folders", [])
        if not all(isinstance(folder, str) and folder for folder in include):
            raise self.top.fail("include", "a list of folders", include)
        instance = self.top.string("template", None)
        whole = self.top.take("host_code", bool, "true or false", False)
        return name, self.text if self.folder is None else read_source(self.folder / name, include, instance, whole)

    def tunables(self, inputs: Collection[str]) -> tuple[Tunable, ...]:
        tables = self.top.take("tunables", dict, "a table of tunables", {})
        if len(tables) > _MOST_TUNABLES:
            raise self.top.fail("tunables", f"at most {_MOST_TUNABLES} tunables", len(tables))
        tunables = []
        for name, data in tables.items():
            table = self.top.inner(f"[tunables] {name}", data)
            if not is_identifier(name) and is_identifier(name.lower()) and name != name.upper():
                raise table.error(f'{expected_name(name)} with define = "{name}"')
            _check_new(table, name, inputs)
            values = table.take("values", list, "a list of integers")
            whole = all(type(value) is int and abs(value) < 2**31 for value in values)
            if not whole or not 1 <= len(values) <= _MOST_VALUES or len(set(values)) < len(values):
                raise table.fail("values", f"1 to {_MOST_VALUES} different integers below 2**31", values)
            meaning, launch = table.string("meaning", ""), table.take("launch", bool, "true or false", False)
            define = table.string("define", None)
            if define is not None and not C_IDENTIFIER.fullmatch(define):
                raise table.fail("define", "the name of a macro", define)
            table.done()
            tunables.append(Tunable(name, tuple(values), meaning, launch, define))
        return tuple(tunables)

    def lets(self, inputs: Collection[str]) -> dict[str, Expression]:
        lets: dict[str, Expression] = {}
        names = set(inputs)
        texts = self.top.take("let", dict, "a table of expressions", {})
        for index, (name, text) in enumerate(texts.items()):
            key = f"[let] {name}"
            _check_new(self.top.inner(key, {}), name, names)
            if later := [n for n in list(texts)[index:] if n not in names and mentions(str(text), n)]:
                raise self.top.error(f"{key}: {str(text)!r:.60} needs {later[0]}, which is not defined before it")
            lets[name] = self.top.parsed(key, text, names)
            names.add(name)
        return lets

    def workspaces(self, names: Collection[str], tensors: Collection[str]) -> tuple[Workspace, ...]:
        workspaces: list[Workspace] = []
        for table in self.top.tables("workspace", "[[workspace]] tables", []):
            name = table.string("name")
            _check_new(table.inner("name", {}), name, (*tensors, *(workspace.name for workspace in workspaces)))
            dtype = table.string("dtype")
            table.check("dtype", "dtype", [dtype], ELEMENT_BYTES)
            workspaces.append(Workspace(name, dtype, table.expression("elements", names), table.condition(names)))
            table.done()
        return tuple(workspaces)


def _check_new(table: Table, name: str, taken: Collection[str]) -> None:
    if not is_identifier(name):
        raise table.error(expected_name(name))
    if name in taken or name in LIMITS or name in _FACTS:
        raise table.error(f"the name {name!r} is already in use")
