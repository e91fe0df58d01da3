"""CUDA's limits on a launch, as constraints on a kernel's configs."""

from collections.abc import Iterable

from kernrec.kernel.expression import Expression, implication, parse
from kernrec.kernel.spec import Launch


def product(extents: Iterable[Expression]) -> Expression:
    """The product of several expressions as one expression."""
    return parse(" * ".join(f"({e.text})" for e in extents if e.text != "1") or "1")


def launch_limits(launch: Launch) -> list[Expression]:
    """CUDA's limits on any launch (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""
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
