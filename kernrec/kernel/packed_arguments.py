"""Pack kernel arguments for the driver: C values, and an array of pointers to them.

Arguments are packed once and used for many launches, because the driver copies them when it queues a launch.
"""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, Scalar
from kernrec.kernel.spec import BytesArgument
from kernrec.kernel.tensor_map import EncodedMap, MapHandle

C_TYPES: dict[str, Any] = {
    "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "u16": ctypes.c_uint16,
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip


class _Place(ctypes.c_void_p):
    """Pointer argument that adds `offset` bytes to each address that it is set to."""

    offset = 0


class PackedArguments:
    """Packed arguments of one launch. Its addresses can be changed for the next launch."""

    def __init__(self, values: Iterable[Any], names: Sequence[str | None] = ()) -> None:
        """Pack values of C types.

        Args:
            values: One value for each parameter.
            names: For each parameter, the tensor or workspace whose address it takes, or None.
        """
        self._values = list(values)
        self.slots: dict[str, list[Any]] = {}
        """Values that hold the address of each tensor or workspace."""
        for name, value in zip(names, self._values, strict=False):
            if name is not None:
                self.slots.setdefault(name, []).append(value)
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(_address, self._values))
        self.address = ctypes.addressof(self._pointers)
        """Address of the array of pointers, for the driver."""

    @classmethod
    def bound(cls, launch: BoundLaunch) -> "PackedArguments":
        """Return the arguments of a bound launch, with null addresses. Raises `KernrecError` if the launch takes a
        texture.
        """
        values: list[Any] = []
        names: list[str | None] = []
        for argument in launch.arguments:
            if isinstance(argument, Scalar):
                values.append(C_TYPES[argument.ctype](argument.value))
                names.append(None)
            elif isinstance(argument, Pointer):
                values.append(_Place(0))
                values[-1].offset = argument.offset
                names.append(None if argument.null else argument.name)
            elif isinstance(argument, BytesArgument):
                values.append((ctypes.c_char * len(argument.raw)).from_buffer_copy(argument.raw))
                names.append(None)
            elif isinstance(argument, MapHandle):
                values.append(EncodedMap(argument))
                names.append(argument.name)
            else:
                raise KernrecError(f"{launch.entry} takes a texture ({argument.name}), which kernrec cannot launch")
        return cls(values, names)

    def set_address(self, name: str, address: int) -> None:
        """Set the address of a tensor or workspace for further launches."""
        for value in self.slots.get(name, ()):
            value.value = address + getattr(value, "offset", 0)


def _address(value: Any) -> int:
    return value.address if isinstance(value, EncodedMap) else ctypes.addressof(value)
