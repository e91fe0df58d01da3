"""Represent a kernel as data: tunables, constraints, launches and arguments around one CUDA C++ source.

`load_kernel` (spec_reader.py) reads a `kernel.toml`. `Space` (space.py) enumerates a kernel's configs, and
`bind_launches` (binding.py) applies one config to one problem. An expression may use these names: the tunables, the
op's given and derived dimensions, `dtype`, `layout`, `dtype_bytes`, `sm` (89 for sm_89, but 100 for sm_103), and all
lets that precede it. Constraints may also use the limits of the GPU that are listed in `LIMITS`.
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
"""One value for each tunable of a kernel, keyed by tunable."""


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
"""Fields of `kernrec.gpu.SmLimits` that constraints may use."""

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
"""Minimum and maximum of each C type that a scalar argument may have."""


@dataclass(frozen=True)
class Tunable:
    """Parameter of a kernel for which each config has a value."""

    name: str
    values: tuple[int, ...]
    """All values that the tunable may have."""
    meaning: str
    launch: bool = False
    """Whether the value is passed when the kernel is launched, so that it does not change the compiled code."""
    define: str | None = None
    """Name of the macro that holds the value in the source. None stands for the tunable's name in upper case."""

    @property
    def macro(self) -> str:
        """Return the name of the macro that holds the tunable's value in the source."""
        return self.define or self.name.upper()


@dataclass(frozen=True)
class TensorValues:
    """Content of a tensor before the launch, or expected content after it, in a spec that declares its own problem."""

    kind: str
    """How the values are generated: `normal`, `zeros`, `constant`, `uniform`, `integers`, `index`, `offsets`,
    `expression`, `file` (a `.npy` file), `raw` (a file with only the values) or `unknown`."""
    numbers: tuple[float, ...] = ()
    """The value of a `constant`, or the bounds of `uniform` and `integers`. The upper bound is excluded."""
    text: str = ""
    """Text that `kind` needs. It is an expression of the flat index `i` and the problem's names for `expression`, a
    file name for `file` and `raw`, and the reason for `unknown`. For `index` and `offsets`, it lists the tensors that
    the values index, each with the number of elements per index step (`x c, y`)."""

    @property
    def indexed(self) -> dict[str, str]:
        """Map each tensor that the values index to its number of elements per index step."""
        parts = (part.strip().partition(" ") for part in self.text.split(","))
        return {name: step.strip() or "1" for name, _, step in parts}

    def __str__(self) -> str:
        if self.kind in ("index", "offsets"):
            return f"{'uniform' if self.kind == 'index' else 'ascending'} over {' and '.join(self.indexed)}"
        numbers = " ".join(f"{number:g}" for number in self.numbers)
        return " ".join(part for part in (self.kind, numbers, self.text) if part)


@dataclass(frozen=True)
class Workspace:
    """Scratch tensor that a kernel needs besides the tensors of its op."""

    name: str
    dtype: str
    elements: Expression
    when: Expression | None
    """Condition under which the workspace is allocated, or None if it always is."""


@dataclass(frozen=True)
class PointerArgument:
    """Argument of a launch that is the address of a tensor or a workspace."""

    name: str
    offset: Expression | None = None
    """Offset of the pointer from the start of the tensor, in elements. None stands for 0."""


@dataclass(frozen=True)
class ScalarArgument:
    """Argument of a launch that is a number passed by value."""

    ctype: str
    """C type of the number, a key of `SCALAR_RANGES`."""
    value: Expression


@dataclass(frozen=True)
class BytesArgument:
    """Argument passed by value as bytes: a structure, or a number of a type that `SCALAR_RANGES` lacks."""

    raw: bytes
    pointers: tuple[tuple[int, str], ...] = ()
    """Members that point to tensors, as pairs (offset in bytes, tensor). `raw` has zeros in their places."""


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel: its geometry, its arguments, and inputs of the analytical model."""

    entry: str
    when: Expression | None
    """Condition under which the launch is executed, or None if it always is."""
    grid: tuple[Expression, Expression, Expression]
    """Number of thread blocks along x, y and z."""
    block: tuple[Expression, Expression, Expression]
    """Number of threads per block along x, y and z."""
    blocks: Expression
    """Number of thread blocks: the product of `grid`."""
    threads: Expression
    """Number of threads per block: the product of `block`."""
    shared: Expression
    """Dynamic shared memory per block in bytes."""
    arguments: tuple[PointerArgument | ScalarArgument | BytesArgument | ImageArgument | MapArgument, ...]
    order: tuple[tuple[str, Expression], ...]
    """Axes along which the output is divided into tiles, each with its number of tiles. Consecutive blocks visit the
    tiles in this order, fastest axis first."""
    visits: Expression
    """Total number of tiles that the blocks visit: the number of blocks, unless a block visits several."""
    reads: Mapping[str, tuple[str, ...]]
    """Maps each tensor or workspace that a block reads to the axes of `order` that select the tile to read."""
    writes: Mapping[str, tuple[str, ...]]
    """Maps each tensor or workspace that a block writes to the axes of `order` that select the tile to write."""
    trips: Mapping[str, Expression]
    """Number of executions of each loop body, summed over all blocks of the grid, keyed by the loop's name."""
    depth: Mapping[str, Expression]
    """Number of executions of each loop body in the block with the most executions, keyed by the loop's name."""
    prefetch: Expression
    """Number of loop iterations from the issue of a global load to the first use of its value."""
    waits: Expression
    """Number of times that the slowest thread block waits for a response from L2 outside of loops."""
    probes: tuple[Mapping[str, Expression], ...]
    """Dimensions of the small problems, without partial tiles, that are emulated to profile the launch."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One implementation of an op, identified by its name and its hash."""

    name: str
    op: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    min_sm: int
    """Oldest architecture on which the kernel can run."""
    dtype_min_sm: Mapping[str, int]
    """Maps each dtype that needs a newer architecture than `min_sm` to that architecture."""
    description: str
    source_name: str
    source: str
    """CUDA C++ with its headers inlined, PTX, or Python with a Triton function."""
    hash: str
    """Hash (16 hex digits) of the spec and the source. It does not depend on descriptions and meanings."""
    tunables: tuple[Tunable, ...]
    lets: Mapping[str, Expression]
    """Named expressions of the spec. Later expressions may use their names."""
    constraints: tuple[Expression, ...]
    """Constraints that the spec states. A config can only run if all are true."""
    implied: tuple[Expression, ...]
    """Constraints of every kernel: block, shared memory and grid of each launch are within the GPU's limits."""
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]
    definition: "Op"
    """Op that the kernel implements. If the spec declares its own problem, the op is made from that declaration."""
    spec: Mapping[str, Any]
    """Content of the `kernel.toml` as plain data. `kernel_from` creates the kernel again from it."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros that are defined for all configs, with their values."""
    initial_values: Mapping[str, TensorValues] = field(default_factory=dict)
    """Content of each tensor before the launch, if the spec declares its own problem."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Maps each tensor that is copied to a `__constant__` variable to the symbol of that variable."""
    images: Mapping[str, ImageLayout] = field(default_factory=dict)
    """Maps each tensor that may be passed as a texture or surface to the layout in which it is read."""
    inouts: frozenset[str] = frozenset()
    """Names of the tensors that the kernel both reads and writes."""
    references: Mapping[str, TensorValues] = field(default_factory=dict)
    """Expected content of each output, if the spec declares it."""
    tolerance: float | None = None
    """Maximum accepted error relative to `references`, if the spec declares one."""
    listed: "ConfigList | None" = None
    """Configs that the spec lists. None stands for all values of the tunables that satisfy the constraints."""
    triton: "TritonFunction | None" = None
    """Parameters and specialization of the Triton function. None if the source is not a Triton function."""
    owner: str | None = None
    """Origin of the source, for messages. None if the source belongs to kernrec or the user."""

    def __repr__(self) -> str:
        return f"<Kernel {self.name} ({self.op}, {', '.join(self.dtypes)}) {self.hash}>"

    @property
    def declares_problem(self) -> bool:
        """Return whether the spec declares its own problem instead of naming an op of kernrec."""
        return bool(self.initial_values)

    @cached_property
    def sampled(self) -> bool:
        """Return whether any launch has no probes. Such a kernel is profiled by emulating a sample of thread blocks on
        one problem.
        """
        return any(not launch.probes for launch in self.launches)

    def form(self, problem: "Problem") -> "Problem":
        """Return an equivalent problem of the kernel's op, or the same problem if it already is of this op. Raises
        `UsageError` if the kernel cannot compute it.
        """
        if problem.op == self.op:
            return problem
        if (form := as_op(problem, self.op)) is None:
            raise UsageError(f"kernel {self.name} computes {self.op}, not {problem.op}")
        return form

    def require(self, dtype: str, layout: str, sm: int | None = None) -> None:
        """Raise `UsageError` if the kernel does not implement a dtype and layout on an architecture."""
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
        """Return whether the kernel implements this dtype on an architecture that no constraint excludes."""
        names: dict[str, Any] = {"sm": code_sm(sm), "dtype": dtype}
        refusing = (c for c in self.constraints if c.names <= names.keys() and not c.evaluate(names))
        return sm >= self.least_sm(dtype) and next(refusing, None) is None

    def config(self, config: Config) -> dict[str, int]:
        """Return a copy of `config` with the tunables in the kernel's order. Raises `UsageError` if a tunable is
        unknown or missing, or has an invalid value."""
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
        """Return the macros that select a config's compiled variant, such as `BLOCK_M`: `128`, `DTYPE_F32`: `1`."""
        fixed = {tunable.macro: str(config[tunable.name]) for tunable in self.tunables if not tunable.launch}
        return {**self.macros, **fixed, f"DTYPE_{dtype.upper()}": "1", f"LAYOUT_{layout.upper()}": "1"}

    def variant_key(self, config: Config, dtype: str, layout: str) -> str:
        """Return the key (16 hex digits) of a config's compiled variant. Run-time tunables do not affect it."""
        return self.variant_keys([[config[name] for name in self.compile_time_tunables]], dtype, layout)[0]

    @property
    def compile_time_tunables(self) -> list[str]:
        """Return the names of the tunables whose values are fixed when the source is compiled."""
        return [tunable.name for tunable in self.tunables if not tunable.launch]

    def variant_keys(self, values: Iterable[Sequence[int]], dtype: str, layout: str) -> list[str]:
        """Return the `variant_key` of each of many variants. `values` contains each variant's values of
        `compile_time_tunables`.
        """
        form = ",".join([dtype, layout, *(f"{name}=%d" for name in self.compile_time_tunables)])
        return [hashlib.sha256((form % tuple(row)).encode()).hexdigest()[:16] for row in values]

    def sample_keys(self, configs: Iterable[Sequence[int]], problem_key: str) -> list[str]:
        """Return, for each config, the key (16 hex digits) under which its profile on one problem is stored. `configs`
        contains each config's values of all tunables.
        """
        form = ",".join([problem_key, *(f"{tunable.name}=%d" for tunable in self.tunables)])
        return [hashlib.sha256((form % tuple(row)).encode()).hexdigest()[:16] for row in configs]

    def static_names(self, config: Config, dtype: str, layout: str, sm: int) -> dict[str, Any]:
        """Return the values of all names that do not depend on the problem's dimensions, such as tunables, `dtype` and
        some lets.
        """
        names: dict[str, Any] = {**config, "sm": code_sm(sm), "dtype": dtype, "layout": layout}
        names["dtype_bytes"] = ELEMENT_BYTES[dtype]
        for name, let in self.lets.items():
            if let.names <= names.keys():
                names[name] = let.evaluate(names)
        return names

    def namespace(self, config: Config, problem: "Problem", sm: int) -> dict[str, Any]:
        """Return the values of all names that the expressions of launches may use, for one config and one problem."""
        names: dict[str, Any] = {**self.form(problem).names, "sm": code_sm(sm), **config}
        names |= self.listed.numbers(config) if self.listed else {}
        for name, let in self.lets.items():
            names[name] = let.evaluate(names)
        return names

    def misfit(self, config: Config, problem: "Problem", limits: "SmLimits") -> str | None:
        """Return the first constraint that a config violates on a problem and GPU, or None if it can run."""
        names = self.namespace(config, problem, limits.sm) | {name: getattr(limits, name) for name in LIMITS}
        return next((c.text for c in (*self.constraints, *self.implied) if not c.evaluate(names)), None)

    def fits(self, config: Config, problem: "Problem", limits: "SmLimits") -> bool:
        """Return whether a config can run on a problem and GPU."""
        return self.misfit(config, problem, limits) is None
