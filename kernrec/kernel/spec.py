"""Represent a kernel as data: tunables, constraints, launches and arguments around one CUDA C++ source.

`load_kernel` (spec_reader.py) reads a `kernel.toml`. `Space` (space.py) enumerates a kernel's configs, and
`bind_launches` (binding.py) applies one config to one problem. An expression may use these names: the tunables, the
dimensions of the op (derived ones too), `dtype`, `layout`, `dtype_bytes`, `sm` (89 for sm_89, 100 for sm_103) and the
lets before it; constraints may also use the limits of the GPU listed in `LIMITS`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError, unknown
from kernrec.gpu.entry import code_sm
from kernrec.kernel.expression import Expression
from kernrec.kernel.tensor_map import ImageArgument, ImageLayout, MapArgument
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.op.equivalent import as_op
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.gpu import SmLimits
    from kernrec.kernel.toml_table import ConfigList
    from kernrec.kernel.triton_function import TritonFunction
    from kernrec.op import Op, Problem

Config = Mapping[str, int]
"""One value for every tunable."""


LIMITS = (
    "max_threads_per_block",
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "registers_per_sm",
    "registers_per_block",
    "max_registers_per_thread",
    "smem_per_sm",
    "smem_per_block",
    "smem_reserved_per_block",
)
"""Fields of `kernrec.gpu.SmLimits` that constraints may name."""

SCALAR_RANGES = {
    "i8": (-(2**7), 2**7 - 1),
    "u8": (0, 2**8 - 1),
    "i16": (-(2**15), 2**15 - 1),
    "u16": (0, 2**16 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**63 - 1),
    "f32": (-3.4028234663852886e38, 3.4028234663852886e38),
    "f64": (-1.7976931348623157e308, 1.7976931348623157e308),
}
"""C types of scalar arguments, with their minimum and maximum."""


@dataclass(frozen=True)
class Tunable:
    """Parameter of a kernel, to which a config gives one value."""

    name: str
    values: tuple[int, ...]
    """Possible values."""
    meaning: str
    launch: bool = False
    """Whether the value is passed at run time and does not change the compiled code."""
    define: str | None = None
    """Macro that holds the value in the source; None for the tunable's name in upper case."""

    @property
    def macro(self) -> str:
        """Return the name of the macro that holds the tunable's value in the source."""
        return self.define or self.name.upper()


@dataclass(frozen=True)
class TensorValues:
    """Generator of a tensor's values, for a spec that declares its own problem."""

    kind: str
    """`normal`, `zeros`, `constant`, `uniform`, `integers`, `index`, `offsets`, `expression`, `file` (a `.npy`), `raw`
    (bare values) or `unknown`."""
    numbers: tuple[float, ...] = ()
    """The constant, or the bounds of `uniform` and `integers` (the second excluded)."""
    text: str = ""
    """Text of the generator, depending on `kind`: an expression of the flat index `i` and the problem's names, a file
    name, the reason for `unknown`, or the tensors that an index points into with the elements per index (`x c, y`).
    """

    @property
    def indexed(self) -> dict[str, str]:
        """Map the tensors that an index points into to the elements per index."""
        parts = (part.strip().partition(" ") for part in self.text.split(","))
        return {name: step.strip() or "1" for name, _, step in parts}

    def __str__(self) -> str:
        if self.kind in ("index", "offsets"):
            return f"{'uniform' if self.kind == 'index' else 'ascending'} over {' and '.join(self.indexed)}"
        numbers = " ".join(f"{number:g}" for number in self.numbers)
        return " ".join(part for part in (self.kind, numbers, self.text) if part)


@dataclass(frozen=True)
class Workspace:
    """A scratch tensor of a kernel."""

    name: str
    dtype: str
    elements: Expression
    when: Expression | None
    """Condition under which the workspace is allocated; None for always."""


@dataclass(frozen=True)
class PointerArgument:
    """Address of a tensor of the op or of a workspace."""

    name: str
    offset: Expression | None = None
    """Offset of the pointer from the start of the tensor, in elements; None for 0."""


@dataclass(frozen=True)
class ScalarArgument:
    """A number passed by value."""

    ctype: str
    """A key of `SCALAR_RANGES`."""
    value: Expression


@dataclass(frozen=True)
class BytesArgument:
    """A structure, or a number of a type without a name in `SCALAR_RANGES`, passed by value."""

    raw: bytes


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel: geometry, arguments, and inputs of the analytical model."""

    entry: str
    when: Expression | None
    """Condition under which the launch takes place; None for always."""
    grid: tuple[Expression, Expression, Expression]
    """Thread blocks along x, y and z."""
    block: tuple[Expression, Expression, Expression]
    """Threads per block along x, y and z."""
    blocks: Expression
    """Product of `grid`."""
    threads: Expression
    """Product of `block`."""
    shared: Expression
    """Dynamic shared memory in bytes."""
    arguments: tuple[PointerArgument | ScalarArgument | BytesArgument | ImageArgument | MapArgument, ...]
    order: tuple[tuple[str, Expression], ...]
    """(axis, number of tiles along it) in the order in which consecutive blocks visit tiles, fastest axis first."""
    visits: Expression
    """Number of tiles that all blocks visit: the number of blocks, unless a block visits several."""
    reads: Mapping[str, tuple[str, ...]]
    """For each tensor or workspace, the axes that select the tile that a block reads."""
    writes: Mapping[str, tuple[str, ...]]
    """For each tensor or workspace, the axes that select the tile that a block writes."""
    trips: Mapping[str, Expression]
    """Executions of each loop body, summed over the grid."""
    depth: Mapping[str, Expression]
    """Executions of each loop body in the block that runs it most often."""
    prefetch: Expression
    """Number of trips between issuing the loop's global loads and using them."""
    waits: Expression
    """Number of idle waits for L2 outside of loops, in the block that runs longest."""
    probes: tuple[Mapping[str, Expression], ...]
    """Dimensions of the small problems on which the launch is emulated for its profile; they consist of full tiles."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One implementation of an op, identified by its name and its hash."""

    name: str
    op: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    min_sm: int
    """Oldest architecture that the kernel runs on."""
    dtype_min_sm: Mapping[str, int]
    """Oldest architecture for dtypes that need a newer one than `min_sm`."""
    description: str
    source_name: str
    source: str
    """CUDA C++ with its headers in place, PTX, or Python with a Triton function."""
    hash: str
    """Hash (16 hex digits) of spec and source, without descriptions and meanings."""
    tunables: tuple[Tunable, ...]
    lets: Mapping[str, Expression]
    """Named expressions, which later expressions may use."""
    constraints: tuple[Expression, ...]
    """Constraints of the spec; a config can run only if all are true."""
    implied: tuple[Expression, ...]
    """Further constraints: the block, shared memory and grid of each launch are within the GPU's limits."""
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]
    definition: "Op"
    """Op, or the problem that the spec declares instead."""
    spec: Mapping[str, Any]
    """Spec as plain data, from which `kernel_from` rebuilds the kernel."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros that are defined for every config."""
    initial_values: Mapping[str, TensorValues] = field(default_factory=dict)
    """Values of the tensors before the launch, for a spec that declares its own problem."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Maps tensors that are copied to `__constant__` symbols to the symbol's name."""
    images: Mapping[str, ImageLayout] = field(default_factory=dict)
    """Tensors that can be passed as a texture or surface, and how they are read."""
    inouts: frozenset[str] = frozenset()
    """Tensors that are both read and written."""
    references: Mapping[str, TensorValues] = field(default_factory=dict)
    """Expected values of every output, if the spec declares them."""
    tolerance: float | None = None
    """Largest accepted error against `references`, if the spec declares one."""
    listed: "ConfigList | None" = None
    """Configs given as a list; None for all values of the tunables that satisfy the constraints."""
    triton: "TritonFunction | None" = None
    """Specialization by Triton, if the kernel is a Triton function."""
    owner: str | None = None
    """Origin of the source, if it is neither kernrec's nor the user's."""

    def __repr__(self) -> str:
        return f"<Kernel {self.name} ({self.op}, {', '.join(self.dtypes)}) {self.hash}>"

    @property
    def declares_problem(self) -> bool:
        """Return whether the spec declares its own problem, instead of naming an op of kernrec."""
        return bool(self.initial_values)

    @cached_property
    def sampled(self) -> bool:
        """Return whether a launch has no probes, so that its profile comes from sampled blocks of one problem."""
        return any(not launch.probes for launch in self.launches)

    def form(self, problem: "Problem") -> "Problem":
        """Convert a problem to the kernel's op. Raises `UsageError` if the kernel cannot compute the problem."""
        if problem.op == self.op:
            return problem
        if (form := as_op(problem, self.op)) is None:
            raise UsageError(f"kernel {self.name} computes {self.op}, not {problem.op}")
        return form

    def require(self, dtype: str, layout: str, sm: int | None = None) -> None:
        """Raise `UsageError` if the kernel does not implement this dtype or layout on this architecture."""
        if dtype not in self.dtypes:
            raise unknown(f"dtype of kernel {self.name}", dtype, self.dtypes)
        if layout not in self.layouts:
            raise unknown(f"layout of kernel {self.name}", layout, self.layouts)
        if sm is not None and sm < self.least_sm(dtype):
            raise UsageError(f"kernel {self.name} needs sm_{self.least_sm(dtype)} or later for {dtype}, not sm_{sm}")

    def least_sm(self, dtype: str) -> int:
        """Return the oldest architecture on which the kernel implements this dtype."""
        return self.dtype_min_sm.get(dtype, self.min_sm)

    def runs_on(self, dtype: str, sm: int) -> bool:
        """Return whether the kernel implements this dtype on an architecture, and no constraint excludes the
        architecture.
        """
        names: dict[str, Any] = {"sm": code_sm(sm), "dtype": dtype}
        refusing = (c for c in self.constraints if c.names <= names.keys() and not c.evaluate(names))
        return sm >= self.least_sm(dtype) and next(refusing, None) is None

    def config(self, config: Config) -> dict[str, int]:
        """Return `config` in the order of the tunables. Raises `UsageError` for an unknown, missing or invalid
        value.
        """
        names = [tunable.name for tunable in self.tunables]
        for name in config:
            if name not in names:
                raise unknown(f"tunable of {self.name}", name, names)
        if missing := [name for name in names if name not in config]:
            raise UsageError(
                f"config of {self.name} is missing {', '.join(missing)}; its tunables are {', '.join(names)}"
            )
        for tunable in self.tunables:
            value = config[tunable.name]
            if value not in tunable.values:
                accepted = ", ".join(map(str, tunable.values))
                raise UsageError(f"{self.name}: {tunable.name} is {value!r:.40}; expected {accepted}")
        return {name: int(config[name]) for name in names}

    def defines(self, config: Config, dtype: str, layout: str) -> dict[str, str]:
        """Return preprocessor macros that select the compiled variant of a config: `BLOCK_M` -> `128`, `DTYPE_F32` ->
        `1`.
        """
        fixed = {tunable.macro: str(config[tunable.name]) for tunable in self.tunables if not tunable.launch}
        return {**self.macros, **fixed, f"DTYPE_{dtype.upper()}": "1", f"LAYOUT_{layout.upper()}": "1"}

    def variant_key(self, config: Config, dtype: str, layout: str) -> str:
        """Return the key (16 hex digits) of a config's compiled variant. Run-time tunables do not change it."""
        return self.variant_keys([[config[name] for name in self.compile_time_tunables]], dtype, layout)[0]

    @property
    def compile_time_tunables(self) -> list[str]:
        """Return the tunables that are fixed when the source is compiled."""
        return [tunable.name for tunable in self.tunables if not tunable.launch]

    def variant_keys(self, values: Iterable[Sequence[int]], dtype: str, layout: str) -> list[str]:
        """Return the `variant_key` of many variants; `values` has their `compile_time_tunables`."""
        form = ",".join([dtype, layout, *(f"{name}=%d" for name in self.compile_time_tunables)])
        return [hashlib.sha256((form % tuple(row)).encode()).hexdigest()[:16] for row in values]

    def sample_keys(self, configs: Iterable[Sequence[int]], problem_key: str) -> list[str]:
        """Return the key (16 hex digits) of each config's profile on one problem; `configs` has the values of all
        tunables.
        """
        form = ",".join([problem_key, *(f"{tunable.name}=%d" for tunable in self.tunables)])
        return [hashlib.sha256((form % tuple(row)).encode()).hexdigest()[:16] for row in configs]

    def static_names(self, config: Config, dtype: str, layout: str, sm: int) -> dict[str, Any]:
        """Return the values of tunables, facts and lets that do not depend on the problem's dimensions."""
        names: dict[str, Any] = {**config, "sm": code_sm(sm), "dtype": dtype, "layout": layout}
        names["dtype_bytes"] = ELEMENT_BYTES[dtype]
        for name, let in self.lets.items():
            if let.names <= names.keys():
                names[name] = let.evaluate(names)
        return names

    def namespace(self, config: Config, problem: "Problem", sm: int) -> dict[str, Any]:
        """Return the values of all names that launch expressions may use, for one config and problem."""
        names: dict[str, Any] = {**self.form(problem).names, "sm": code_sm(sm), **config}
        names |= self.listed.numbers(config) if self.listed else {}
        for name, let in self.lets.items():
            names[name] = let.evaluate(names)
        return names

    def misfit(self, config: Config, problem: "Problem", limits: "SmLimits") -> str | None:
        """Return the first constraint that a config violates on a problem and GPU; None if it can run."""
        names = self.namespace(config, problem, limits.sm) | {name: getattr(limits, name) for name in LIMITS}
        return next((c.text for c in (*self.constraints, *self.implied) if not c.evaluate(names)), None)

    def fits(self, config: Config, problem: "Problem", limits: "SmLimits") -> bool:
        """Return whether a config can run on a problem and GPU."""
        return self.misfit(config, problem, limits) is None
