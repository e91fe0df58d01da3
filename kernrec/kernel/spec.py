"""Represent a kernel as data: tunables, constraints, launches and arguments around one source.

Expressions may use the tunables, the op's given and derived dimensions, `dtype`, `layout`, `dtype_bytes`, `sm` (from
`code_sm`) and the preceding entries of the spec's table `let`. Constraints may also use the GPU's `LIMITS`.
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
"""Value of each tunable of a kernel."""


LIMITS = (
    "max_threads_per_block", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm", "registers_per_block",
    "max_registers_per_thread", "smem_per_sm", "smem_per_block", "smem_reserved_per_block",
)  # fmt: skip
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
"""Minimum and maximum of each C type of a scalar argument."""


@dataclass(frozen=True)
class Tunable:
    """Parameter of a kernel. Each config has a value for it."""

    name: str
    values: tuple[int, ...]
    """Values in the order of the spec."""
    meaning: str
    launch: bool = False
    """Whether the value is passed at launch instead of being compiled in."""
    define: str | None = None
    """Macro for the value in the source. None means the tunable's name in upper case."""

    @property
    def macro(self) -> str:
        return self.define or self.name.upper()


@dataclass(frozen=True)
class TensorValues:
    """Content of a tensor before or after the launch, as a spec declares it."""

    kind: str
    """`normal`, `zeros`, `constant`, `uniform`, `integers`, `index`, `offsets`, `expression`, `file` (a `.npy` file),
    `raw` (a file with only the values) or `unknown`."""
    numbers: tuple[float, ...] = ()
    """Value of a `constant`, or the bounds of `uniform` and `integers`. The upper bound is excluded."""
    text: str = ""
    """Expression of the flat index `i`, file name, or reason for `unknown`.

    For `index` and `offsets`: tensors into which the values point. `x c, y` means that a value i points to element
    c * i of x, and to element i of y.
    """

    @property
    def indexed(self) -> dict[str, str]:
        """Return how many elements an index step skips, keyed by the name of the indexed tensor."""
        parts = (part.strip().partition(" ") for part in self.text.split(","))
        return {name: step.strip() or "1" for name, _, step in parts}

    def __str__(self) -> str:
        if self.kind in ("index", "offsets"):
            return f"{'uniform' if self.kind == 'index' else 'ascending'} over {' and '.join(self.indexed)}"
        numbers = " ".join(f"{number:g}" for number in self.numbers)
        return " ".join(part for part in (self.kind, numbers, self.text) if part)


@dataclass(frozen=True)
class Workspace:
    name: str
    dtype: str
    elements: Expression
    when: Expression | None
    """Condition for allocating the workspace, or None to allocate it always."""


@dataclass(frozen=True)
class PointerArgument:
    """Argument with the address of a tensor or workspace."""

    name: str
    offset: Expression | None = None
    """Offset in elements, or None."""


@dataclass(frozen=True)
class ScalarArgument:
    """Argument that is a number."""

    ctype: str
    """C type, a key of `SCALAR_RANGES`."""
    value: Expression


@dataclass(frozen=True)
class BytesArgument:
    """Argument that is a structure, or a number of a type that `SCALAR_RANGES` lacks."""

    raw: bytes
    pointers: tuple[tuple[int, str], ...] = ()
    """Tuple (offset in bytes, tensor) for each member that is a pointer. In `raw`, pointers are zero."""


@dataclass(frozen=True, eq=False)
class Launch:
    """Launch of a kernel: geometry, arguments, and inputs of the analytical model."""

    entry: str
    when: Expression | None
    """Condition for executing the launch, or None to execute it always."""
    grid: tuple[Expression, Expression, Expression]
    block: tuple[Expression, Expression, Expression]
    blocks: Expression
    """Product of `grid`."""
    threads: Expression
    """Product of `block`."""
    shared: Expression
    """Dynamic shared memory in bytes per block."""
    arguments: tuple[PointerArgument | ScalarArgument | BytesArgument | ImageArgument | MapArgument, ...]
    order: tuple[tuple[str, Expression], ...]
    """Axes that divide the output into tiles, each with its number of tiles. The fastest axis comes first.

    Consecutive blocks visit tiles in this order.
    """
    visits: Expression
    """Number of tiles that a block visits, summed over all blocks."""
    reads: Mapping[str, tuple[str, ...]]
    """Axes of `order` that select the tile that a block reads, keyed by tensor or workspace."""
    writes: Mapping[str, tuple[str, ...]]
    """Axes of `order` that select the tile that a block writes, keyed by tensor or workspace."""
    trips: Mapping[str, Expression]
    """Executions of each loop body, summed over all blocks, keyed by the loop's name."""
    depth: Mapping[str, Expression]
    """Largest number of executions of each loop body in one block, keyed by the loop's name."""
    prefetch: Expression
    """Number of loop iterations between a global load and the first use of its value."""
    waits: Expression
    """Number of times that the slowest thread block waits for L2, not counting waits in loops."""
    probes: tuple[Mapping[str, Expression], ...]
    """Dimensions of the small problems on which the launch is profiled. The problems consist of full tiles."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """Implementation of an op."""

    name: str
    op: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    min_sm: int
    """Oldest architecture that can run the kernel."""
    dtype_min_sm: Mapping[str, int]
    """Oldest architecture for each dtype that does not run on `min_sm`."""
    description: str
    source_name: str
    source: str
    """CUDA C++ with headers inserted, PTX, or Python with a Triton function."""
    hash: str
    """Hash (16 hex digits) of the source, and of the spec without descriptions."""
    tunables: tuple[Tunable, ...]
    lets: Mapping[str, Expression]
    """Named expressions. An expression may use the names of earlier expressions."""
    constraints: tuple[Expression, ...]
    """Conditions of the spec that every config must satisfy."""
    implied: tuple[Expression, ...]
    """Conditions from the GPU's limits on the block, shared memory and grid of each launch."""
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...]
    definition: "Op"
    """Op that the kernel implements."""
    spec: Mapping[str, Any]
    """Content of the `kernel.toml`."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros that are equal in all configs."""
    initial_values: Mapping[str, TensorValues] = field(default_factory=dict)
    """Content of each tensor before the launch. Empty unless the spec declares its own problem."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Symbol of the `__constant__` variable for each constant tensor."""
    images: Mapping[str, ImageLayout] = field(default_factory=dict)
    """Layout of each tensor that a launch may pass as a texture or surface."""
    inouts: frozenset[str] = frozenset()
    """Tensors that the kernel both reads and writes."""
    references: Mapping[str, TensorValues] = field(default_factory=dict)
    """Expected content of each output. It may be empty."""
    tolerance: float | None = None
    """Maximum error relative to `references`, or None."""
    listed: "ConfigList | None" = None
    """Configs that the spec lists, or None for all combinations that satisfy the constraints."""
    triton: "TritonFunction | None" = None
    """Content of the `[triton]` table, or None if the source is not Triton."""
    owner: str | None = None
    """Origin of a source that comes neither from kernrec nor from the user, or None."""

    def __repr__(self) -> str:
        return f"<Kernel {self.name} ({self.op}, {', '.join(self.dtypes)}) {self.hash}>"

    @property
    def declares_problem(self) -> bool:
        """Return whether the spec declares its own problem."""
        return bool(self.initial_values)

    @cached_property
    def sampled(self) -> bool:
        """Return whether profiles are made from a sample of blocks. Each problem then needs its own profile."""
        return any(not launch.probes for launch in self.launches)

    def form(self, problem: "Problem") -> "Problem":
        """Convert a problem to the kernel's op. Raise `UsageError` if the op cannot express the problem."""
        if problem.op == self.op:
            return problem
        if (form := as_op(problem, self.op)) is None:
            raise UsageError(f"kernel {self.name} computes {self.op}, not {problem.op}")
        return form

    def require(self, dtype: str, layout: str, sm: int | None = None) -> None:
        """Raise `UsageError` if the kernel does not support a dtype, layout or architecture."""
        if dtype not in self.dtypes:
            raise unknown(f"dtype of kernel {self.name}", dtype, self.dtypes)
        if layout not in self.layouts:
            raise unknown(f"layout of kernel {self.name}", layout, self.layouts)
        if sm is not None and sm < self.least_sm(dtype):
            raise UsageError(f"kernel {self.name} needs sm_{self.least_sm(dtype)} or later for {dtype}, not sm_{sm}")

    def least_sm(self, dtype: str) -> int:
        """Return the oldest architecture that can run this dtype."""
        return self.dtype_min_sm.get(dtype, self.min_sm)

    def runs_on(self, dtype: str, sm: int) -> bool:
        """Return whether the kernel and its constraints allow a dtype on an architecture."""
        names: dict[str, Any] = {"sm": code_sm(sm), "dtype": dtype}
        refusing = (c for c in self.constraints if c.names <= names.keys() and not c.evaluate(names))
        return sm >= self.least_sm(dtype) and next(refusing, None) is None

    def config(self, config: Config) -> dict[str, int]:
        """Return `config` with its tunables in the kernel's order. Raise `UsageError` if a name or value is wrong."""
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
        """Return the macros of a config, such as `BLOCK_M`: `128`, `DTYPE_F32`: `1`."""
        fixed = {tunable.macro: str(config[tunable.name]) for tunable in self.tunables if not tunable.launch}
        return {**self.macros, **fixed, f"DTYPE_{dtype.upper()}": "1", f"LAYOUT_{layout.upper()}": "1"}

    def variant_key(self, config: Config, dtype: str, layout: str) -> str:
        """Return the key (16 hex digits) of a config's compiled variant."""
        return self.variant_keys([[config[name] for name in self.compile_time_tunables]], dtype, layout)[0]

    @property
    def compile_time_tunables(self) -> list[str]:
        return [tunable.name for tunable in self.tunables if not tunable.launch]

    def variant_keys(self, values: Iterable[Sequence[int]], dtype: str, layout: str) -> list[str]:
        """Return the `variant_key` of each variant. `values` has the `compile_time_tunables` of each variant."""
        return _keys([dtype, layout], self.compile_time_tunables, values)

    def sample_keys(self, configs: Iterable[Sequence[int]], problem_key: str) -> list[str]:
        """Return the key (16 hex digits) of each config's profile on one problem."""
        return _keys([problem_key], [tunable.name for tunable in self.tunables], configs)

    def static_names(self, config: Config, dtype: str, layout: str, sm: int) -> dict[str, Any]:
        """Return the values of all names that do not depend on the problem's dimensions."""
        names: dict[str, Any] = {**config, "sm": code_sm(sm), "dtype": dtype, "layout": layout}
        names["dtype_bytes"] = ELEMENT_BYTES[dtype]
        for name, let in self.lets.items():
            if let.names <= names.keys():
                names[name] = let.evaluate(names)
        return names

    def namespace(self, config: Config, problem: "Problem", sm: int) -> dict[str, Any]:
        """Return the values of all names that expressions of launches may use."""
        names: dict[str, Any] = {**self.form(problem).names, "sm": code_sm(sm), **config}
        names |= self.listed.numbers(config) if self.listed else {}
        for name, let in self.lets.items():
            names[name] = let.evaluate(names)
        return names

    def misfit(self, config: Config, problem: "Problem", limits: "SmLimits") -> str | None:
        """Return the first constraint that a config violates on a problem and GPU, or None."""
        names = self.namespace(config, problem, limits.sm) | {name: getattr(limits, name) for name in LIMITS}
        return next((c.text for c in (*self.constraints, *self.implied) if not c.evaluate(names)), None)


def _keys(texts: Sequence[str], names: Sequence[str], values: Iterable[Sequence[int]]) -> list[str]:
    form = ",".join([*texts, *(f"{name}=%d" for name in names)])
    return [hashlib.sha256((form % tuple(row)).encode()).hexdigest()[:16] for row in values]
