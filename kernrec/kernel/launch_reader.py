"""Read a `[[launch]]` table of a `kernel.toml`."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kernrec.errors import unknown
from kernrec.kernel.expression import Expression, implication, literal, parse
from kernrec.kernel.spec import SCALAR_RANGES, BytesArgument, Launch, PointerArgument, ScalarArgument
from kernrec.kernel.tensor_map import ImageArgument, ImageLayout, MapArgument
from kernrec.kernel.toml_table import Table, mentions
from kernrec.util.light_dataclass import dataclass

# The pattern need not find every kernel, because kernrec uses it only for suggestions in error messages.
_KERNEL = re.compile(r"(?:__global__|\.entry)\s[\s\w]*?(\w+)\s*\(")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,4095}")  # Mangled names of templates are long.
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")
_DECIMAL = re.compile(r" *-?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)? *")


@dataclass(frozen=True)
class LaunchReader:
    source: str
    names: Collection[str]
    static_names: Collection[str]
    """Names that do not depend on a problem's dimensions. Expressions under `probes` may use only these names."""
    dims: Collection[str]
    pointers: Collection[str]
    """Tensors and workspaces."""
    images: Mapping[str, ImageLayout]

    def read(self, table: Table) -> Launch:
        names = self.names
        entry = self._entry(table)
        when = table.condition(names)
        grid, block = self._extents(table, "grid"), self._extents(table, "block")
        blocks = _product(grid)
        shared = table.expression("shared", names, "0")
        texts = table.take("arguments", list, "a list of strings")
        arguments = tuple(self._argument(table, f"arguments[{i}]", text) for i, text in enumerate(texts))
        order = []
        for i, step in enumerate(table.take("order", list, "a list of [axis, extent]", [])):
            if not (isinstance(step, list) and len(step) == 2 and isinstance(step[0], str)):
                raise table.fail(f"order[{i}]", "[axis, extent]", step)
            order.append((step[0], table.parsed(f"order[{i}]", step[1], names)))
        visits = table.expression("visits", names, blocks.text)
        axes = list(dict.fromkeys(axis for axis, _ in order))
        reads, writes = self._touched(table, "reads", axes), self._touched(table, "writes", axes)
        trips, depth = table.expressions("trips", names), table.expressions("depth", names)
        if trips.keys() != depth.keys():
            expected = f"the same loops as in trips ({', '.join(trips) or 'none'})"
            raise table.fail("depth", expected, ", ".join(depth) or "none")
        if "block" in trips:
            raise table.fail("trips", "another name than 'block', which is reserved for the blocks", "block")
        launch = Launch(
            entry=entry,
            when=when,
            grid=grid,
            block=block,
            blocks=blocks,
            threads=_product(block),
            shared=shared,
            arguments=arguments,
            order=tuple(order),
            visits=visits,
            reads=reads,
            writes=writes,
            trips=trips,
            depth=depth,
            prefetch=table.expression("prefetch", names, "0"),
            waits=table.expression("waits", names, "0"),
            probes=self._probes(table, len(trips)),
        )
        table.done()
        return launch

    def _entry(self, table: Table) -> str:
        entry: str = table.string("entry")
        if not _ENTRY.fullmatch(entry):
            raise table.fail("entry", "the name of a function", entry)
        if not mentions(self.source, entry):
            # Import late, because the module's regular expressions would slow the start of queries.
            from kernrec.kernel.cuda_signature import source_name

            if not mentions(self.source, source_name(entry)):
                kernels = list(dict.fromkeys(_KERNEL.findall(_BOUNDS.sub("", self.source))))
                raise table.error(f"entry: {unknown('kernel', entry, kernels)}")
        return entry

    def _extents(self, table: Table, key: str) -> tuple[Expression, Expression, Expression]:
        texts = table.take(key, list, "a list of 1 to 3 expressions")
        if not 1 <= len(texts) <= 3:
            raise table.fail(key, "1 to 3 expressions", texts)
        x, y, z = table.items(key, [*texts, 1, 1][:3], self.names)
        return x, y, z

    def _argument(
        self, table: Table, key: str, text: Any
    ) -> PointerArgument | ScalarArgument | BytesArgument | ImageArgument | MapArgument:
        if not isinstance(text, str):
            raise table.fail(key, "a tensor or 'ctype expression'", text)
        ctype, _, value = text.strip().partition(" ")
        if not value or value.startswith("+"):
            table.check(key, "tensor", [ctype], sorted(self.pointers))
            # The dimension `bias` adds the tensor `bias`, so a kernel that takes the tensor supports the dimension.
            table.named.add(ctype)
            return PointerArgument(ctype, table.parsed(key, value[1:].strip(), self.names) if value else None)
        if ctype == "bytes":
            digits, *pointers = value.split(" ")
            places = [re.fullmatch(r"(\w+)@(\d{1,4})", pointer) for pointer in pointers]
            raw = bytes.fromhex(digits) if re.fullmatch(r"(?:[0-9a-f]{2}){1,4096}", digits) else b""
            if not raw or not all(place and int(place[2]) + 8 <= len(raw) for place in places):
                raise table.fail(key, "'bytes' and hexadecimal digits, then TENSOR@OFFSET for each pointer", text)
            members = tuple((int(place[2]), place[1]) for place in places if place)
            table.check(key, "tensor", (name for _, name in members), sorted(self.pointers))
            table.named.update(name for _, name in members)
            return BytesArgument(raw, members)
        if ctype in ("texture", "surface"):
            if value.strip() not in self.images:
                images = ", ".join(self.images) or "no tensor has one"
                raise table.error(f"{key}: {text!r}: expected a tensor with a texture table ({images})")
            return ImageArgument(value.strip())
        if ctype == "map":
            name, _, extents = (part.strip() for part in value.partition(":"))
            if name not in self.pointers or not extents:
                tensors = ", ".join(sorted(self.pointers))
                raise table.error(f"{key}: 'map {value}': expected a tensor ({tensors}) and a box, 'map a: 64, 128'")
            return MapArgument(name, tuple(table.parsed(key, part, self.names) for part in extents.split(",")))
        table.check(key, "C type", [ctype], SCALAR_RANGES)
        if ctype[0] == "f" and _DECIMAL.fullmatch(value):
            return ScalarArgument(ctype, literal(float(value)))
        return ScalarArgument(ctype, table.parsed(key, value, self.names))

    def _touched(self, table: Table, key: str, axes: Collection[str]) -> dict[str, tuple[str, ...]]:
        tensors = table.take(key, dict, "a table of tensor = [axes]", {})
        table.check(key, "tensor", tensors, sorted(self.pointers))
        for name, selected in tensors.items():
            if not isinstance(selected, list):
                raise table.fail(f"{key}.{name}", "a list of axes", selected)
            table.check(f"{key}.{name}", "axis of order", selected, axes)
        return {name: tuple(selected) for name, selected in tensors.items()}

    def _probes(self, table: Table, loops: int) -> tuple[Mapping[str, Expression], ...]:
        probes = []
        for i, probe in enumerate(table.take("probes", list, "a list of tables", [])):
            key = f"probes[{i}]"
            if not isinstance(probe, dict):
                raise table.fail(key, "a table of dimensions", probe)
            table.check(key, "dimension", probe, self.dims)
            sizes = {dim: table.parsed(f"{key}.{dim}", text, self.static_names) for dim, text in probe.items()}
            probes.append(sizes)
        if probes and len(probes) < loops + 2:
            raise table.error(
                f"probes: expected at least {loops + 2} problems (one per loop in `trips`, plus two), got {len(probes)}"
            )
        return tuple(probes)


def _product(extents: Iterable[Expression]) -> Expression:
    return parse(" * ".join(f"({e.text})" for e in extents if e.text != "1") or "1")


def launch_limits(launch: Launch) -> list[Expression]:
    """Return CUDA's limits on a launch as constraints (Programming Guide, "Technical Specifications")."""
    x, y, z = (extent.text for extent in launch.grid)
    rules = [
        f"1 <= ({launch.threads.text}) <= max_threads_per_block",
        f"0 <= ({launch.shared.text}) <= smem_per_block",
        f"1 <= ({x}) <= 2147483647",
        *(f"1 <= ({size}) <= 65535" for size in (y, z) if size != "1"),
    ]
    if launch.block[2].text != "1":
        rules.append(f"({launch.block[2].text}) <= 64")
    parsed = [parse(rule) for rule in rules if rule != "0 <= (0) <= smem_per_block"]
    return parsed if launch.when is None else [implication(launch.when, rule) for rule in parsed]
