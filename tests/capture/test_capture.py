"""Test captured programs on stand-ins for CUDA's libraries. The program registers its GPU code by hand."""

import ctypes
import ctypes.util
import re
import shutil
import socket
import struct
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernrec.capture.call_file import read_cuda_call
from kernrec.capture.launch_checks import LaunchChecks
from kernrec.capture.loaded_module import Image, LoadedModule, best_ptx, images_of
from kernrec.capture.program_run import libraries, run_program
from kernrec.capture.recorded_calls import Recorder
from kernrec.capture.session import Session, Textures
from kernrec.cli import app
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.execution.watched import EmulationOptions
from tests.helpers.paths import beside

HERE = Path(__file__).parent
KERNELS = HERE / "kernels.ptx"
A100 = find_gpu("a100")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("needs g++")
    path, folder = tmp_path_factory.mktemp("capture") / "program", libraries()
    linked = [f"-L{folder}", "-l:libcudart.so.13", "-l:libcuda.so.1"]
    subprocess.run([compiler, "-std=c++17", str(HERE / "program.cpp"), "-o", str(path), *linked], check=True)
    return path


def run(program: Path, mode: str, folder: Path) -> tuple[int, Recorder]:
    recorder = Recorder("captured in a test")
    status = run_program([str(program), str(KERNELS), mode], A100, folder, recorder, [], 10_000_000)
    return status, recorder


@pytest.mark.parametrize(
    ("mode", "printed", "message", "status"),
    [
        pytest.param("scale", "1 3981 cudaSuccess", "", 0, id="constants and structures"),
        pytest.param("variables", "133", "", 0, id="variables keep their values between launches"),
        pytest.param("relaunch", "43 19 19", "", 0, id="equal launches with other arguments and memory"),
        pytest.param("graph", "0 63", "", 0, id="a captured stream runs when its graph is launched"),
        pytest.param("graph memory", "0 7 0 7 ", "", 0, id="a graph that allocates memory runs twice"),
        pytest.param("updated graph", "7", "", 0, id="a graph that was updated from itself"),
        pytest.param("changed graph", "7 9 cudaErrorInvalidValue", "", 0, id="a graph instantiated twice, then gone"),
        pytest.param("events", "cudaErrorInvalidResourceHandle 1", "", 0, id="the time between two events"),
        pytest.param("joined stream", "1 0 15", "", 0, id="a stream that joined a capture"),
        pytest.param("many", "1", "", 0, id="more allocations than ranges of addresses"),
        pytest.param("registered", "3 3", "", 0, id="registered memory of the host"),
        pytest.param("rows", "abchijopqvwx", "", 0, id="copies of rows"),
        pytest.param("device", "108 8", "", 0, id="attributes and occupancy"),
        pytest.param("driver", "37 4", "", 0, id="the driver API"),
        pytest.param(
            "out of bounds", "cudaErrorIllegalAddress cudaErrorIllegalAddress cudaErrorIllegalAddress",
            "an allocation (number 1), which has 800 bytes", 0, id="an access out of bounds fails what follows, too",
        ),
        pytest.param("refused", "cudaErrorInvalidConfiguration", "refuses this grid", 0, id="a grid of no blocks"),
        pytest.param(
            "machine code", "0 0 cudaErrorNoKernelImageForDevice",
            "scale: the program has machine code for sm_80 and no PTX", 0, id="no PTX",
        ),
        pytest.param("missing call", "", "cudaIpcCloseMemHandle is not supported", 1, id="a call that nobody has"),
        pytest.param("fork", "", "the program forked after its first CUDA call", 0, id="a fork"),
    ],
)  # fmt: skip
def test_captured_program_computes_the_gpu_result(mode, printed, message, status, program, tmp_path, capfd):
    assert run(program, mode, tmp_path)[0] == status
    output, errors = capfd.readouterr()
    if printed:
        assert output.split("\n")[0] == printed
    assert message in errors
    assert bool(message) == bool(errors)


def test_recorder_notices_cuda_calls_of_a_program_without_launches(program, tmp_path):
    status, recorder = run(program, "rows", tmp_path)
    assert (status, recorder.called, recorder.launches) == (0, True, 0)


def test_equal_launches_are_merged_into_one_captured_call(program, tmp_path):
    _, recorder = run(program, "scale", tmp_path)
    assert (recorder.launches, recorder.functions) == (3, 1)
    (file,) = recorder.write(tmp_path)
    data = tomllib.loads(file.read_text())
    assert (data["launches"], data["grid"], data["block"]) == (3, [4, 1, 1], [64, 1, 1])
    assert data["arguments"] == ["b1=f32[200]", "b2=f32[200]", "u32:200"]
    ptx = (tmp_path / data["ptx"]).read_text()
    assert ".b8 gain[4] = {0, 0, 32, 65};" in ptx  # the program copied 10.0 into `gain`
    assert ".const .align 8 .b8 by[16] = {0, 0, 0, 64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};" in ptx
    kernel, _ = read_cuda_call(file).kernel()
    assert kernel.launches[0].entry == "scale"
    file.write_text("# edited")
    assert recorder.write(tmp_path) == [file]
    assert file.read_text() == "# edited"


def recorded(
    ptx: str, entry: str, arguments: list[bytes], buffers: Any, images: Any = None, prepared: bool = False
) -> Recorder:
    recorder, module = Recorder(), LoadedModule(1, [], [ptx], 1 << 50)
    if prepared:
        module.prepare()
    recorder.add(module, KernelLaunch(entry, (1, 1, 1), (1, 1, 1), arguments, buffers, 0, {}, images or {}))
    return recorder


def emulated(file: Path, entry: str, count: int) -> list[int]:
    """Return the output of a recorded call's PTX, which writes `count` words."""
    written = parse((file.parent / tomllib.loads(file.read_text())["ptx"]).read_text())
    out = np.zeros(count, np.uint32)
    emulate(written, KernelLaunch(entry, (1,), (1,), ["out"], {"out": out}))
    return out.tolist()


def test_recorder_keeps_no_buffer_contents_in_memory(tmp_path):
    ptx = beside(__file__, "read_and_write.ptx")
    places = np.array([1, 2], np.uint32).view(np.uint8)
    buffers = {"b1": places, "b2": np.zeros(16, np.uint8)}
    arguments = [(slot << 40).to_bytes(8, "little") for slot in (1, 2)]
    recorder = recorded(ptx, "follow", arguments, buffers)
    ((call,),) = (calls.values() for calls in recorder._calls.values())
    assert not call.contents
    (file,) = recorder.write(tmp_path)
    name = tomllib.loads(file.read_text())["arguments"][0].partition("@")[2]
    assert np.load(tmp_path / name).tolist() == [1, 2]


def test_captured_call_includes_memory_referenced_by_a_structure(tmp_path):
    ptx = beside(__file__, "structure.ptx")
    buffers = {"b1": np.zeros(16, np.uint8), "b2": np.array([9, 8, 7, 3], np.uint32).view(np.uint8)}
    arguments = [struct.pack("<QQ", (2 << 40) + 4, 2), struct.pack("<Q", 1 << 40)]
    (file,) = recorded(ptx, "pick", arguments, buffers).write(tmp_path)
    assert emulated(file, "pick", 4) == [0, 0, 0, 3]


def test_captured_function_pointer_table_is_emulated(tmp_path):
    ptx = beside(__file__, "function_table.ptx")
    recorder = recorded(ptx, "apply", [struct.pack("<Q", 1 << 40)], {"b1": np.zeros(4, np.uint8)}, prepared=True)
    (file,) = recorder.write(tmp_path)
    assert emulated(file, "apply", 1) == [49]


@pytest.mark.parametrize(("branch", "argument"), [
    pytest.param("", "t0=texture(linear,wrap,normalized,channels=2):f32[3x4x2]", id="random texels"),
    pytest.param("@%p1 bra END;", "t0=texture(linear,wrap,normalized,channels=2):@FILE", id="texels that matter"),
])  # fmt: skip
def test_captured_call_describes_a_texture(branch, argument, tmp_path):
    ptx = f""".version 7.0
.target sm_80
.address_size 64
.visible .entry fetch(.param .u64 image, .param .u64 out)
{{
    .reg .pred %p<2>;
    .reg .f32 %f<6>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [image];
    ld.param.u64 %rd2, [out];
    mov.f32 %f1, 0f3F000000;
    tex.2d.v4.f32.f32 {{%f2, %f3, %f4, %f5}}, [%rd1, {{%f1, %f1}}];
    setp.lt.f32 %p1, %f3, 0f00000000;
    {branch}
    st.global.f32 [%rd2], %f3;
END:
    ret;
}}
"""
    texels = np.arange(24, dtype=np.float32)
    handle = (textures := Textures()).add(texels.view(np.uint8), (4, 3, 0), (32, 2, 2), (0, 0), (0, 1, 0, 1))
    buffers, images = textures.added_to({"b1": np.zeros(4, np.uint8)})
    arguments = [handle.to_bytes(8, "little"), (1 << 40).to_bytes(8, "little")]
    (file,) = recorded(ptx, "fetch", arguments, buffers, images).write(tmp_path)
    texture, out = tomllib.loads(file.read_text())["arguments"]
    assert texture.replace(f"{file.stem}-t0.npy", "FILE") == argument
    assert out.startswith("b1=")
    assert not branch or np.load(tmp_path / f"{file.stem}-t0.npy").tolist() == texels.reshape(3, 4, 2).tolist()
    kernel, _ = read_cuda_call(file).kernel()
    assert kernel.launches[0].entry == "fetch"


def test_capture_session_continues_after_an_unexpected_error(capsys):
    ours, theirs = socket.socketpair()
    with ours:
        for verb in (b"no verb", b"device"):
            ours.sendall(struct.pack("<QQ", 1, len(verb)) + verb)
        ours.shutdown(socket.SHUT_WR)
        Session(theirs, A100, Recorder(), 1000).serve()
        assert b"KeyError" in (data := ours.recv(1 << 16))
        assert A100.title.encode() in data
    assert "failed inside kernrec" in capsys.readouterr().err


def test_texture_larger_than_its_memory_is_refused(refuses):
    memory = np.zeros(3 * 512 + 64, np.uint8)
    textures = Textures()
    textures.add(memory, (64, 4, 0), (8, 1, 1), (512, 0), (1, 0, 0, 0))
    assert textures.added_to({})[0]["image 0"].nbytes == 4 * 64
    refuses(lambda: textures.add(memory[1:], (64, 4, 0), (8, 1, 1), (512, 0), (1, 0, 0, 0)))


def test_call_file_is_read_from_a_folder_with_a_backslash_in_its_name(tmp_path):
    (folder := tmp_path / r"a\1b").mkdir()
    (path := folder / "call.toml").write_text(
        'ptx = "k.ptx"\nentry = "k"\ngrid = [1]\nblock = [32]\narguments = ["@x.npy"]\n'
    )
    assert read_cuda_call(path).arguments == (f"@{folder.resolve()}/x.npy",)


@pytest.mark.parametrize(("content", "message"), [
    pytest.param(b"\x7fELF\x02 libcudart_static_0 ", "rebuild it with nvcc -cudart shared", id="a static runtime"),
    pytest.param(b"\x7fELF\x01", "32-bit", id="32 bits"),
    pytest.param(b"\x7fELF\x02 libcublas.so.13", "needs libcublas.so", id="a library of NVIDIA"),
    pytest.param(b"\x7fELF\x02 libcudart.so.11.0", "CUDA 11", id="an old runtime"),
])  # fmt: skip
def test_program_that_cannot_run_is_refused(content, message, tmp_path):
    path = tmp_path / "program"
    path.write_bytes(content)
    path.chmod(0o755)
    with pytest.raises(UsageError, match=message):
        run_program([str(path)], A100, tmp_path, Recorder(), [], 1000)


def test_unsupported_call_format_is_refused(tmp_path, refuses):
    def refused(line: str) -> None:
        lines = {"ptx": '"k.ptx"', "entry": '"k"', "grid": "[1]", "block": "[32]", "arguments": "[]"}
        key, _, value = line.partition(" = ")
        lines[key] = value
        (path := tmp_path / "call.toml").write_text("".join(f"{name} = {text}\n" for name, text in lines.items()))
        read_cuda_call(path)

    refuses(refused, ["grid = [0]", "arguments = [1]", "lines = 1", 'launches = "3"', "launches = 0"])


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1"])
def test_capture_libraries_export_no_internal_functions(name):
    # Exported libstdc++ symbols would replace the libstdc++ of other libraries, and XGBoost failed for this reason.
    done = subprocess.run(
        ["nm", "-D", "--defined-only", libraries() / name], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
    assert exported
    assert not [name for name in exported if not re.match(r"_*cu|nvml|_Z\w*N7capture|libcudart", name)]


@pytest.mark.parametrize(("mode", "status", "reported"), [
    ("scale", 0, "scale: no errors"), ("table", 0, "store_last: no errors"),
    ("out of bounds", 1, "thread (8, 0, 0) of block (3, 0, 0) accesses 4 bytes at offset 800 of argument 2"),
    ("refused", 1, "[launch, kernel scale]"),
])  # fmt: skip
def test_check_reports_errors_of_a_program_as_it_runs(mode, status, reported, program, capfd):
    assert app.run(["check", "--time", "2s", "--", str(program), str(KERNELS), mode]) == status
    assert reported in capfd.readouterr().out


@pytest.mark.parametrize("seconds", [0, 60])
def test_check_runs_only_whole_clusters(seconds):
    ptx = ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry f()\n{\n    ret;\n}\n"
    checks, launch = LaunchChecks(seconds), KernelLaunch("f", (48, 2, 1), (32, 1, 1), [], {}, cluster=(2, 2, 1))
    checks.run(LoadedModule(1, [], [ptx], 1 << 50), launch, EmulationOptions(96, count=False), together=False)
    assert (checks.results["f"].blocks, checks.results["f"].of_blocks) == (96 if seconds else 0, 96)


def test_check_without_launches_names_the_reason(program, capfd):
    assert app.run(["check", "--", str(program), str(KERNELS), "rows"]) == 1
    assert "the program launched no CUDA kernel" in capfd.readouterr().err


PTX = ".version 8.0\n.target sm_80\n.address_size 64\n" + "// nothing\n" * 40


def fat_binary(*entries: tuple[int, int, int, bytes, int]) -> bytes:
    """Return a fat binary. Each item of `entries` has (kind, sm, flags, content, unpacked size)."""
    body = b""
    for kind, sm, flags, content, unpacked in entries:
        padded = content.ljust(-(-len(content) // 8) * 8, b"\0")
        packed = len(content) if flags else 0
        head = struct.pack("<HHIQIIHHIIIQQQ", kind, 1, 72, len(padded), packed, 0, 0, 8, sm, 0, 0, flags, 0, unpacked)
        body += head.ljust(72, b"\0") + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def lz4(text: bytes) -> bytes:
    """Compress a text that repeats its 11-byte line: literals, one match for all repeats, and final literals."""
    head, tail = text[:-401], text[-401:]
    token = lambda literals, match: bytes([min(literals, 15) << 4 | min(match, 15)])  # noqa: E731
    length = lambda n: b"" if n < 15 else b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])  # noqa: E731
    repeated = len(tail) - 5 - 4
    first = token(len(head), repeated) + length(len(head)) + head + struct.pack("<H", 11) + length(repeated)
    return first + token(5, 0) + tail[-5:]


def test_lz4_is_unpacked():
    packed = lz4(PTX.encode())
    assert len(packed) < len(PTX) / 2
    assert images_of(fat_binary((1, 80, 0x2000, packed, len(PTX)))) == [Image(80, PTX)]


def test_zstd_is_unpacked():
    if (name := ctypes.util.find_library("zstd")) is None:
        pytest.skip("needs libzstd")
    buffer, library = ctypes.create_string_buffer(4096), ctypes.CDLL(name)
    library.ZSTD_compress.restype = ctypes.c_size_t
    size = library.ZSTD_compress(buffer, ctypes.c_size_t(4096), PTX.encode(), ctypes.c_size_t(len(PTX)), 3)
    assert images_of(fat_binary((1, 80, 0x8000, buffer.raw[:size], len(PTX)))) == [Image(80, PTX)]


@pytest.mark.parametrize(("data", "message"), [
    pytest.param(fat_binary((1, 80, 0x2000, b"\xf0", 500)), "damaged", id="truncated lz4"),
    pytest.param(fat_binary((1, 80, 0x2000, b"", 1 << 40)), "too large", id="an oversized lz4 image"),
    pytest.param(fat_binary((1, 80, 0x8000, b"", 1 << 40)), "too large", id="an oversized zstd image"),
    pytest.param(
        fat_binary()[:16] + struct.pack("<HHIQ", 2, 1, 0, 0).ljust(64, b"\0"), "no header", id="no header"
    ),
])  # fmt: skip
def test_damaged_fat_binary_is_refused(data, message):
    with pytest.raises(KernrecError, match=message):
        images_of(data)


def test_newest_ptx_that_the_gpu_runs_is_chosen():
    texts = {sm: f".target sm_{sm}\n" for sm in (75, 80, 90)}
    images = images_of(
        fat_binary((2, 80, 0, b"\x7fELF", 0), *((1, sm, 0, text.encode(), 0) for sm, text in texts.items()))
    )
    assert [image.sm for image in images] == [80, 75, 80, 90]
    assert best_ptx(images, 86) == texts[80]
    assert best_ptx(images, 70) == texts[75]
    assert best_ptx(images[:1], 86) is None
