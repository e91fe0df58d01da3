"""Tensor maps that a kernel writes by itself, and the fences after which copies may use them.

Copies read maps through a proxy of their own: what threads wrote is seen there after a release by the writer and an
acquire of that map by the block that uses it (PTX ISA, section 9.7.13.6, `fence.proxy.tensormap`).
"""

_WRITTEN, _RELEASED = "written", "released"


class MapFences:
    """The maps in global memory that were written in a batch, by their addresses."""

    def __init__(self) -> None:
        self._states: dict[int, str] = {}
        self._acquired: set[tuple[int, int]] = set()  # (address, block)

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._states.clear()
        self._acquired.clear()

    def write(self, address: int) -> None:
        """A thread writes a map, without a fence."""
        self._states[address] = _WRITTEN
        self._forget(address)

    def release(self) -> None:
        """A thread releases what was written."""
        self._states = dict.fromkeys(self._states, _RELEASED)

    def write_released(self, address: int) -> None:
        """A thread writes and releases a map at once (`tensormap.cp_fenceproxy`)."""
        self._states[address] = _RELEASED
        self._forget(address)

    def acquire(self, address: int, block: int) -> None:
        """A thread of a block acquires a map."""
        if self._states.get(address) == _RELEASED:
            self._acquired.add((address, block))

    def missing(self, address: int, block: int) -> str:
        """What a block lacks before its copies may use a map: a fence, or nothing."""
        state = self._states.get(address)
        if state is None or (address, block) in self._acquired:
            return ""
        return f"fence.proxy.tensormap::generic.{'release' if state == _WRITTEN else 'acquire'}"

    def _forget(self, address: int) -> None:
        self._acquired = {key for key in self._acquired if key[0] != address}
