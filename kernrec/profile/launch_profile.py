"""Represent stored profiles of launches, and find a kernel's name in PTX; imports no emulator."""

from collections.abc import Mapping

from kernrec.compile.compiled import Resources
from kernrec.errors import KernrecError
from kernrec.kernel.spec import Kernel
from kernrec.profile.fit_profile import Profile
from kernrec.store import ProfileRow
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class LaunchProfile:
    """Static profile of one launch of a variant or config on one architecture."""

    launch: int
    """Index of the launch in `Kernel.launches`."""
    entry: str
    """Name of the launched kernel in its source."""
    resources: Resources
    profile: Profile
    """Counts as a function of blocks and trips."""
    ptx_hash: str
    compiler: str
    """Compiler, as in `Compiled`."""

    def row(self, kernel: Kernel, sm: int, variant_key: str, variant: Mapping[str, int | str]) -> ProfileRow:
        """Return the database row of this profile; `variant` holds the values that `variant_key` identifies."""
        resources = self.resources
        return ProfileRow(
            kernel=kernel.name,
            kernel_hash=kernel.hash,
            variant_key=variant_key,
            sm=sm,
            launch=self.launch,
            entry=self.entry,
            variant=variant,
            registers=resources.registers,
            spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes,
            stack_bytes=resources.stack_bytes,
            static_smem_bytes=resources.static_smem_bytes,
            ptx_hash=self.ptx_hash,
            compiler=self.compiler,
            metrics=self.profile.metrics,
            terms=self.profile.terms,
            counts=self.profile.coefficients,
        )


def entry_name(functions: Mapping[str, object], name: str) -> str:
    """Return the PTX name, possibly mangled, of the kernel that the source calls `name`.

    Raises:
        KernrecError: the PTX has no such kernel, or several.
    """
    if name in functions:
        return name
    mangled = [function for function in functions if function.startswith("_Z") and f"{len(name)}{name}" in function]
    if len(mangled) == 1:
        return mangled[0]
    if mangled:
        raise KernrecError(f'kernel {name} is overloaded in its source; declare it extern "C"')
    raise KernrecError(f"the source has no kernel {name} (it has {', '.join(functions) or 'none'})")
