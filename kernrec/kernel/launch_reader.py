"""Reads a `[[launch]]` table of a `kernel.toml`; an error is one line that names file and key."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.expression import Expression, literal
from kernrec.kernel.expression_reader import ExpressionReader
from kernrec.kernel.image_layout import ImageArgument, ImageLayout
from kernrec.kernel.launch_limits import product
from kernrec.kernel.spec import SCALAR_RANGES, Launch, PointerArgument, ScalarArgument
from kernrec.kernel.tensor_map import MapArgument
from kernrec.kernel.toml_table import C_IDENTIFIER, Table, what
from kernrec.util.light_dataclass import dataclass

_KERNEL = re.compile(r"(?:__global__|\.entry)\s[\s\w]*?(\w+)\s*\(")  # good enough to suggest names
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")
_DECIMAL = re.compile(r" *-?[0-9]+\.[0-9]+ *")


@dataclass(frozen=True)
class LaunchScope:
    """What the launches of a kernel may name."""

    names: Collection[str]
    """Names in expressions."""
    probe_names: Collection[str]
    """Those that are known before the problem: names in the expressions of probes."""
    dims: Collection[str]
    """Dimensions of the op."""
    pointers: Collection[str]
    """Tensors and workspaces."""
    images: Mapping[str, ImageLayout]
    """Tensors that are read through textures or surfaces."""
    source: str
    """The kernel's source."""


class LaunchReader:
    """Reads the launches of one kernel."""

    def __init__(self, expressions: ExpressionReader, scope: LaunchScope) -> None:
        self._expressions = expressions
        self._scope = scope

    def read(self, where: str, data: Any) -> Launch:
        """The launch that a `[[launch]]` table describes; errors begin with `where`."""
        table = Table(where, data)
        names, scope = self._scope.names, self._scope

        def expression(key: str, text: Any, among: Collection[str] = names) -> Expression:
            return self._expressions.read(key, text, among, where)

        entry = table.string("entry")
        if not C_IDENTIFIER.fullmatch(entry):
            raise table.fail("entry", "the name of a function", entry)
        if not re.search(rf"\b{entry}\b", scope.source):
            kernels = list(dict.fromkeys(_KERNEL.findall(_BOUNDS.sub("", scope.source))))
            raise UsageError(f"{table.where}: entry: {unknown('kernel of the source', entry, kernels)}")
        when = self._expressions.condition(table, names)
        grid = self._extents(table, "grid")
        block, blocks = self._extents(table, "block"), product(grid)
        shared = expression("shared", table.take("shared", object, "an expression", "0"))
        arguments = tuple(
            self._argument(f"arguments[{i}]", text, where)
            for i, text in enumerate(table.take("arguments", list, "a list of strings"))
        )
        order = []
        for i, step in enumerate(table.take("order", list, "a list of [axis, extent]", [])):
            if not (isinstance(step, list) and len(step) == 2 and isinstance(step[0], str)):
                raise table.fail(f"order[{i}]", "[axis, extent]", step)
            order.append((step[0], expression(f"order[{i}]", step[1])))
        visits = expression("visits", table.take("visits", object, "an expression", blocks.text))
        axes = list(dict.fromkeys(axis for axis, _ in order))
        reads = self._touched(table, "reads", axes)
        writes = self._touched(table, "writes", axes)
        trips = {
            loop: expression(f"trips.{loop}", text) for loop, text in table.take("trips", dict, "a table", {}).items()
        }
        depth = {
            loop: expression(f"depth.{loop}", text) for loop, text in table.take("depth", dict, "a table", {}).items()
        }
        if trips.keys() != depth.keys():
            raise table.fail("depth", f"the loops of trips ({', '.join(trips) or 'none'})", ", ".join(depth) or "none")
        if "block" in trips:
            raise table.fail("trips", "a loop not called 'block', which stands for the blocks themselves", "block")
        prefetch = expression("prefetch", table.take("prefetch", object, "an expression", "0"))
        waits = expression("waits", table.take("waits", object, "an expression", "0"))
        probes = []
        for i, probe in enumerate(table.take("probes", list, "a list of tables", [])):
            if not isinstance(probe, dict):
                raise table.fail(f"probes[{i}]", "a table of dimensions", probe)
            for dim in probe:
                if dim not in scope.dims:
                    raise UsageError(f"{where}: probes[{i}]: {unknown('dimension', dim, scope.dims)}")
            probes.append({d: expression(f"probes[{i}].{d}", text, scope.probe_names) for d, text in probe.items()})
        if probes and len(probes) < len(trips) + 2:
            raise table.fail("probes", f"at least {len(trips) + 2} for {len(trips)} loops", len(probes))
        table.done()
        return Launch(
            entry=entry,
            when=when,
            grid=grid,
            block=block,
            blocks=blocks,
            threads=product(block),
            shared=shared,
            arguments=arguments,
            order=tuple(order),
            visits=visits,
            reads=reads,
            writes=writes,
            trips=trips,
            depth=depth,
            prefetch=prefetch,
            waits=waits,
            probes=tuple(probes),
        )

    def _extents(self, table: Table, key: str) -> tuple[Expression, Expression, Expression]:
        texts = table.take(key, list, "a list of 1 to 3 expressions")
        if not 1 <= len(texts) <= 3:
            raise table.fail(key, "1 to 3 expressions", texts)
        x, y, z = (
            self._expressions.read(f"{key}[{i}]", text, self._scope.names, table.where)
            for i, text in enumerate([*texts, 1, 1][:3])
        )
        return x, y, z

    def _argument(
        self, key: str, text: Any, where: str
    ) -> PointerArgument | ScalarArgument | ImageArgument | MapArgument:
        pointers, images = self._scope.pointers, self._scope.images
        if not isinstance(text, str):
            raise UsageError(f"{where}: {key}: expected a tensor or 'ctype expression', got {what(text)}")
        ctype, _, value = text.strip().partition(" ")
        if not value:
            if ctype not in pointers:
                raise UsageError(f"{where}: {key}: {unknown('tensor', ctype, sorted(pointers))}")
            self._expressions.named.add(ctype)  # a late dimension of that name says whether the tensor is there
            return PointerArgument(ctype)
        if ctype in ("texture", "surface"):
            if value.strip() not in images:
                known = ", ".join(images) or "no tensor has one"
                raise UsageError(f"{where}: {key}: {text!r}: expected a tensor with a texture table ({known})")
            return ImageArgument(value.strip())
        if ctype == "map":
            return self._map(key, value, where)
        if ctype not in SCALAR_RANGES:
            raise UsageError(f"{where}: {key}: {unknown('C type', ctype, SCALAR_RANGES)}")
        if ctype[0] == "f" and _DECIMAL.fullmatch(value):
            return ScalarArgument(ctype, literal(float(value)))
        return ScalarArgument(ctype, self._expressions.read(key, value, self._scope.names, where))

    def _map(self, key: str, text: str, where: str) -> MapArgument:
        name, _, extents = (part.strip() for part in text.partition(":"))
        if name not in self._scope.pointers or not extents:
            known = ", ".join(sorted(self._scope.pointers))
            raise UsageError(f"{where}: {key}: 'map {text}': expected a tensor ({known}) and a box, 'map a: 64, 128'")
        box = (self._expressions.read(key, part, self._scope.names, where) for part in extents.split(","))
        return MapArgument(name, tuple(box))

    def _touched(self, table: Table, key: str, axes: Collection[str]) -> dict[str, tuple[str, ...]]:
        pointers = self._scope.pointers
        tensors = {}
        for name, selected in table.take(key, dict, "a table of tensor = [axes]", {}).items():
            if name not in pointers:
                raise UsageError(f"{table.where}: {key}: {unknown('tensor', name, sorted(pointers))}")
            if not isinstance(selected, list):
                raise table.fail(f"{key}.{name}", "a list of axes", selected)
            for axis in selected:
                if axis not in axes:
                    raise UsageError(f"{table.where}: {key}.{name}: {unknown('axis of order', axis, axes)}")
            tensors[name] = tuple(selected)
        return tensors
