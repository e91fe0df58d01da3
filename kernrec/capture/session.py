"""Serve the CUDA calls of one process of a captured program: memory, code, textures and launches.

The replacement libraries in `native/` send requests over a socket. A request or reply is a list of byte strings: their
number, their lengths, and then their bytes. A reply begins with the number of a CUDA error, or 0.
"""

import array
import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from kernrec.capture.device import attributes, device_name, properties
from kernrec.capture.launch_checks import LaunchChecks
from kernrec.capture.loaded_module import CUDA_ERROR, LaunchError, LoadedModule, best_ptx, images_of
from kernrec.capture.recorded_calls import SLOTS, Recorder
from kernrec.errors import KernrecError
from kernrec.gpu import GPU
from kernrec.gpu.entry import occupancy
from kernrec.ptx import EmulationError, Image, KernelLaunch, Sampler
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import EmulationOptions
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, IMAGE_WINDOW, WINDOW_SHIFT
from kernrec.ptx.state.results import BudgetError

_ADDRESSES = ("wrap", "clamp", "mirror", "border")  # Indexed by cudaTextureAddressMode.
_KINDS = "iuf"  # Element kinds, indexed by cudaChannelFormatKind.
_LAYERED, _CUBEMAP = 1, 4  # Flags of CUDA arrays.
_NONE = Image("no image", (1,), "u8")


class Textures:
    """Textures and surfaces of a process. A handle's low bits are the number of the image, counted from 1."""

    def __init__(self) -> None:
        self._placed: list[tuple[Image, np.ndarray, int] | None] = []
        """Image, memory and bytes per row, keyed by number. None if the image was removed."""

    def add(
        self, memory: np.ndarray, extents: Sequence[int], channel: Sequence[int], place: Sequence[int],
        modes: Sequence[int],
    ) -> int:  # fmt: skip
        """Add a texture or surface, and return its handle.

        Args:
            memory: Bytes of the image, starting with the first texel.
            extents: Number of texels along x, y and z, or 0 for an axis that the image does not have.
            channel: Bits per channel, number of channels, and kind of values.
            place: Bytes from one row to the next (0 if rows are contiguous), and flags of the CUDA array.
            modes: Address mode, and whether to filter linearly, to read integers as fractions, and to normalize
                coordinates.

        Raises:
            KernrecError: The rows do not fit in the memory.
        """
        (bits, channels, kind), (pitch, flags) = channel, place
        width, height, depth = extents
        layers = depth if flags & (_LAYERED | _CUBEMAP) and depth else 1
        whole = (width, height, 0 if layers > 1 else depth)
        number = next((i for i, placed in enumerate(self._placed) if placed is None), len(self._placed))
        mode, linear, unit_range, normalized = modes
        element = f"{_KINDS[kind]}{bits}"
        sampler = Sampler(
            "linear" if linear else "point",
            _ADDRESSES[mode] if normalized or mode in (1, 3) else "clamp",
            bool(normalized),
            bool(unit_range) and element[0] != "f",
        )
        image = Image(f"image {number}", tuple(n for n in whole if n), element, channels, layers, sampler=sampler)
        row = width * image.texel_bytes
        if pitch not in (0, row) and (height - 1) * pitch + row > memory.nbytes:
            raise KernrecError(f"a texture of {height} rows, {pitch} bytes apart, is larger than its allocation")
        self._placed[number : number + 1] = [(image, memory, pitch)]
        return IMAGE_WINDOW << WINDOW_SHIFT | number + 1

    def remove(self, handle: int) -> None:
        number = (handle & (1 << WINDOW_SHIFT) - 1) - 1
        if 0 <= number < len(self._placed):
            self._placed[number] = None

    def added_to(self, buffers: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Image]]:
        """Add a buffer for each image to `buffers`. Return the buffers and the images, both keyed by name."""
        if not any(self._placed):
            return buffers, {}
        buffers[_NONE.buffer] = np.zeros(1, np.uint8)
        images = {f"texture {i}": _NONE if placed is None else placed[0] for i, placed in enumerate(self._placed)}
        for image, memory, pitch in filter(None, self._placed):
            row = image.extents[0] * image.texel_bytes
            if pitch in (0, row):
                buffers[image.buffer] = memory[: image.bytes]
            else:
                rows = image.extents[1]
                view = np.lib.stride_tricks.as_strided(memory, (rows, row), (pitch, 1))
                buffers[image.buffer] = np.ascontiguousarray(view).reshape(-1)
        return buffers, images


_MOST_FIELDS, _MOST_BYTES = 1 << 16, 1 << 31
_BARRIER_BYTES = 8
_VERBS = (
    b"device", b"map", b"unmap", b"module", b"managed", b"variable", b"prepare", b"function", b"occupancy", b"launch",
    b"image", b"free image",
)  # fmt: skip
"""Requests that the libraries in `native/` send. A method of `Session` answers each request."""
_UNCHANGED = (b"launch", b"device", b"variable", b"function", b"occupancy")
"""Requests that do not change memory, code or textures."""
_MOST_KEPT_LAUNCHES = 16
_MOST_KEPT_THREADS = 1 << 18
"""Maximum threads of a cooperative launch that is kept for reuse. A kept launch needs memory for each thread."""
_MOST_TOGETHER = 1 << 22
"""Maximum threads of a cooperative launch, because all threads run at the same time."""


class Session:
    """Connection to a process of a captured program, from its first CUDA call to its end.

    `budget` is the maximum number of PTX instructions for a batch of thread blocks.
    """

    def __init__(self, connection: socket.socket, gpu: GPU, recorder: Recorder, budget: int) -> None:
        self._connection, self._gpu, self._recorder, self._budget = connection, gpu, recorder, budget
        self._maps: dict[int, mmap.mmap] = {}
        self._buffers: dict[str, np.ndarray] = {f"b{slot}": np.zeros(0, np.uint8) for slot in range(1, SLOTS + 1)}
        self._textures = Textures()
        self._modules: dict[int, LoadedModule] = {}
        self._failed = CUDA_ERROR["success"]
        self._emulations: dict[tuple[object, ...], Emulation] = {}
        """Emulations of recent launches. Changes of memory or code clear them."""
        self._verbs: dict[bytes, Callable[..., Sequence[object]]] = {
            verb: getattr(self, f"_{verb.decode().replace(' ', '_')}") for verb in _VERBS
        }

    def serve(self) -> None:
        """Answer the requests of the process until it ends."""
        with self._connection:
            while (request := self._receive()) is not None:
                if request[0] not in _UNCHANGED:
                    self._emulations.clear()
                try:
                    reply = [CUDA_ERROR["success"], *self._verbs[request[0]](*request[1:])]
                except Exception as error:  # Answer with a CUDA error and keep the connection.
                    text = str(error)
                    if not isinstance(error, KernrecError):
                        text = f"a CUDA call of the program failed inside kernrec: {type(error).__name__}: {error}"
                    reply = [error.number if isinstance(error, LaunchError) else CUDA_ERROR["unknown"], text]
                    print(f"kernrec: {text}", file=sys.stderr, flush=True)
                fields = [field if isinstance(field, bytes) else str(field).encode() for field in reply]
                head = struct.pack(f"<{len(fields) + 1}Q", len(fields), *map(len, fields))
                try:
                    self._connection.sendall(head + b"".join(fields))
                except OSError:
                    return

    def _receive(self) -> list[bytes] | None:
        try:
            head = self._read(8)
            (count,) = struct.unpack("<Q", head)
            if count > _MOST_FIELDS:
                return None
            sizes = struct.unpack(f"<{count}Q", self._read(8 * count))
            if sum(sizes) > _MOST_BYTES:
                return None
            data, ends = self._read(sum(sizes)), list(accumulate(sizes))
            return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        except (EOFError, OSError):
            return None

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._connection.recv(min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _descriptor(self) -> int:
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        _, messages, _, _ = self._connection.recvmsg(1, room)
        files = array.array("i")
        for _, _, data in messages:
            files.frombytes(data[: files.itemsize])
        if not files:
            raise EOFError
        return files[0]

    def _device(self) -> Sequence[object]:
        numbers = " ".join(f"{key} {value}" for key, value in attributes(self._gpu).items())
        texts = (device_name(self._gpu), self._gpu.usable_bytes, numbers)
        return [*texts, properties(self._gpu, 12), properties(self._gpu, 13)]

    def _map(self, text: bytes) -> Sequence[object]:
        slot, size, mapped = map(int, text.split())
        file = self._descriptor()
        try:
            memory = mmap.mmap(file, mapped)
        finally:
            os.close(file)
        self._maps[slot] = memory
        self._buffers[f"b{slot}"] = np.frombuffer(memory, np.uint8)[:size]
        return []

    def _unmap(self, slot: bytes) -> Sequence[object]:
        self._buffers[f"b{int(slot)}"] = np.zeros(0, np.uint8)
        self._maps.pop(int(slot), None)  # Python unmaps the memory when nothing refers to it any more.
        return []

    def _module(self, image: bytes, *linked: bytes) -> Sequence[object]:
        number = len(self._modules) + 1
        images = [each for data in (image, *linked) for each in images_of(data)]
        texts = [text for data in linked if (text := best_ptx(images_of(data), self._gpu.sm))] if linked else []
        ptx = None if linked else best_ptx(images, self._gpu.sm)
        self._modules[number] = LoadedModule(number, images, [ptx] if ptx else texts, (SLOTS + 1) << BUFFER_SHIFT)
        return [number]

    def _managed(self, module: bytes, *variables: bytes) -> Sequence[object]:
        loaded = self._modules[int(module)]
        for name, text in zip(variables[::2], variables[1::2], strict=True):
            address, size = map(int, text.split())
            loaded.place(name.decode(), self._memory(address, size), address)
        return []

    def _variable(self, module: bytes, name: bytes) -> Sequence[object]:
        variable = self._modules[int(module)].variable(name.decode())
        return [variable.size, int(variable.space == "const")]

    def _prepare(self, module: bytes, *variables: bytes) -> Sequence[object]:
        self._managed(module, *variables)
        self._modules[int(module)].prepare()
        return []

    def _memory(self, address: int, size: int) -> np.ndarray:
        slot, offset = address >> BUFFER_SHIFT, address & (1 << BUFFER_SHIFT) - 1
        return self._buffers[f"b{slot}"][offset : offset + size]

    def _function(self, module: bytes, name: bytes) -> Sequence[object]:
        facts = self._modules[int(module)].facts(name.decode())
        places = "".join(f"{size} {offset}," for size, offset in facts.parameters)
        return [places, " ".join(map(str, facts.attributes))]

    def _occupancy(self, module: bytes, name: bytes, text: bytes) -> Sequence[object]:
        threads, shared = map(int, text.split())
        facts = self._modules[int(module)].facts(name.decode())
        resident = occupancy(self._gpu.limits, threads, facts.registers, facts.static_shared + shared)
        return [int(resident.blocks)]

    def _launch(
        self, number: bytes, entry: bytes, grid_: bytes, block_: bytes, shared: bytes, cluster_: bytes,
        together: bytes, packed: bytes, shared_: bytes, pool_end: bytes,
    ) -> Sequence[object]:  # fmt: skip
        if self._failed:  # Like CUDA, reject all launches after a failed launch.
            raise LaunchError(self._failed, f"{entry.decode()} was skipped: an earlier launch failed")
        module, name = self._modules[int(number)], entry.decode()
        grid, block, cluster = (tuple(map(int, text.split())) for text in (grid_, block_, cluster_))
        facts = module.facts(name)
        try:
            facts.check(self._gpu, grid, block, int(shared))
        except LaunchError as error:
            if self._recorder.checks is not None:
                self._recorder.checks.refuse(name, str(error))
            raise
        arguments = [packed[offset : offset + size] for size, offset in facts.parameters]
        buffers, images = self._textures.added_to({**self._buffers, **module.buffers})
        barrier = 0
        if int(together):
            buffers["grid barrier"] = np.array([_BARRIER_BYTES, 0], np.uint32).view(np.uint8)
            barrier = len(buffers) << BUFFER_SHIFT
        launch = KernelLaunch(
            name, grid, block, arguments, buffers, int(shared), module.constants(), images,
            cluster if any(cluster) else (), module.addresses, barrier,
        )  # fmt: skip
        numbers = list(map(int, shared_.split()))
        allocations = dict(zip(numbers[::2], numbers[1::2], strict=True))
        if (checks := self._recorder.checks) is not None and checks.selects(launch):
            used = buffers[f"b{SLOTS}"][: int(pool_end) - (SLOTS << BUFFER_SHIFT)]
            launch = replace(launch, buffers={**buffers, f"b{SLOTS}": used})
        else:
            checks = None
        self._recorder.add(module, launch, allocations)
        self._emulate(module, launch, int(together) != 0, checks)
        return []

    def _emulate(self, module: LoadedModule, launch: KernelLaunch, together: bool, checks: LaunchChecks | None) -> None:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        lanes = blocks * launch.block[0] * launch.block[1] * launch.block[2]
        options = EmulationOptions(blocks, count=False, budget=self._budget)
        if together:
            if lanes > _MOST_TOGETHER:
                text = f"a cooperative launch of {lanes} threads is too large; at most {_MOST_TOGETHER} are emulated"
                raise LaunchError(CUDA_ERROR["cooperative"], f"{launch.entry}: {text}")
            options = EmulationOptions(blocks, batch_lanes=2 * lanes, count=False, budget=self._budget)
        constants = [array.tobytes() for array in launch.constants.values()]
        shape = (launch.grid, launch.block, launch.shared_bytes, launch.cluster, together)
        key = (module.number, launch.entry, shape, *constants)
        try:
            if checks is not None:
                checks.run(module, launch, options, together)
                return
            emulation = self._emulations.pop(key, None)
            if emulation is None:
                emulation = Emulation(module.module, launch, options)
            else:
                emulation.set_arguments(launch.arguments)
            if not together or lanes <= _MOST_KEPT_THREADS:
                self._emulations[key] = emulation
            if len(self._emulations) > _MOST_KEPT_LAUNCHES:
                self._emulations.pop(next(iter(self._emulations)))
            emulation.run(range(blocks))
        except BudgetError as error:
            self._failed = CUDA_ERROR["timeout"]
            raise LaunchError(self._failed, f"{launch.entry}: {error}") from None
        except EmulationError as error:
            text = self._named(str(error))
            kind = "assert" if "assert" in text else "address" if "accesses" in text or "writes" in text else "launch"
            self._failed = CUDA_ERROR[kind]
            raise LaunchError(self._failed, text) from None

    def _named(self, text: str) -> str:
        for slot in range(SLOTS, 0, -1):
            text = text.replace(f" b{slot},", f" an allocation (number {slot}),")
        return text

    def _image(self, address: bytes, extents: bytes, channel: bytes, pitch: bytes, sampler: bytes) -> Sequence[object]:
        start = int(address)
        slot, offset = start >> BUFFER_SHIFT, start & (1 << BUFFER_SHIFT) - 1
        memory = self._buffers[f"b{slot}"][offset:]
        numbers = (tuple(map(int, text.split())) for text in (extents, channel, pitch, sampler))
        return [self._textures.add(memory, *numbers)]

    def _free_image(self, handle: bytes) -> Sequence[object]:
        self._textures.remove(int(handle))
        return []
