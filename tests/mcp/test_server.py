"""Test the MCP server over standard input and output with the SDK's client."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.gpu.gpu_file import gpu_text
from kernrec.mcp.server import Folder
from tests.checking.test_check import AXPY
from tests.helpers.command import environment
from tests.helpers.models import LLAMA_3_8B
from tests.helpers.needs import needs
from tests.helpers.serving import written

pytestmark = [pytest.mark.slow, needs("mcp", "cupy")]

ARGUMENTS = ["f32:2", "x=f32[1000]", "y=f32[1000]", "i32:1000"]
LAUNCH = {"arguments": ARGUMENTS, "grid": [4], "block": [256]}
CHECK = {**LAUNCH, "reference": {"y": "argument0 * x + y"}}
MATMUL = {"op": "matmul", "gpu": "h200", "shape": "m=64,n=64,k=64"}
SERVED = {"batch": 8, "context": 8192, "backend": ["vllm"]}

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "recommend": ("recommend", MATMUL),
    "backend": ("recommend", {**MATMUL, "dtype": "bf16", "backend": ["vllm"]}),
    "no such backend": ("recommend", {**MATMUL, "backend": ["vlm"]}),
    "card file": ("recommend", {**MATMUL, "gpu": "mine.toml"}),
    "zeros": ("recommend", {**MATMUL, "shape": "m=4096,n=4096,k=4096", "inputs": "zeros"}),
    "explain": ("explain", {**MATMUL, "config": {}, "inputs": "zeros"}),
    "compare": ("compare", {"workload": "bert-base", "gpus": "h200,l40s", "inputs": "zeros"}),
    "model": ("compare", {"workload": "model/config.json", "gpus": "h100,rtx4060", **SERVED}),
    "right": ("check", {**CHECK, "source": AXPY}),
    "wrong": ("check", {**CHECK, "file": "wrong.cu"}),
    "out of bounds": ("check", {**LAUNCH, "source": AXPY.replace("if (i < n) ", "")}),
    "endless": ("check", {**CHECK, "source": AXPY.replace("y[i] =", "while (true) y[i] +=")}),
    "include": ("check", {**CHECK, "source": '#include "/etc/passwd"\n' + AXPY}),
    "escape": ("check", {**CHECK, "file": "../secret.cu"}),
    "absolute": ("analyze", {"gpu": "t4", "file": "/etc/passwd"}),
    "value file": ("check", {**LAUNCH, "source": AXPY, "arguments": ["x=@/etc/passwd"]}),
    "network file": ("compare", {"workload": "/etc/passwd.csv", "gpus": "h200"}),
    "huge": ("check", {**LAUNCH, "source": AXPY, "arguments": ["x=f64[99999999999]"]}),
    "long": ("check", {**CHECK, "source": "/" * 300_000}),
    "no such op": ("recommend", {**MATMUL, "op": "matmull"}),
    "reference": ("check", {**CHECK, "source": AXPY, "reference": {"y": "__import__('os')"}}),
    "objects": ("check", {**CHECK, "source": AXPY, "reference": {"y": "zeros((2, 3), 'O')"}}),
    "hidden include": ("check", {**CHECK, "source": "#" + " " * 5000 + "include </proc/self/environ>\n" + AXPY}),
    "wrong type": ("recommend", {**MATMUL, "top": "many"}),
    "two kernels": ("analyze", {**LAUNCH, "gpu": "t4", "source": AXPY + AXPY.replace("axpy", "other")}),
    "the other": ("analyze", {**LAUNCH, "gpu": "t4", "source": AXPY + AXPY.replace("axpy", "other"), "entry": "other"}),
    "after all that": ("recommend", MATMUL),
}


async def session(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = ["-m", "kernrec", "mcp", "--folder", str(folder), "--time-limit", "3s"]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment())
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as opened:
        await opened.initialize()
        tools = {tool.name: tool for tool in (await opened.list_tools()).tools}
        return tools, {name: await opened.call_tool(tool, supplied) for name, (tool, supplied) in CALLS.items()}


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    outside = tmp_path_factory.mktemp("mcp")
    inside = outside / "inside"
    inside.mkdir()
    (outside / "secret.cu").write_text(AXPY)
    (inside / "mine.toml").write_text(gpu_text(find_gpu("l4"), "mine"))
    written(inside / "model", LLAMA_3_8B)
    (inside / "wrong.cu").write_text(AXPY.replace("alpha *", "2.1f *"))
    return asyncio.run(session(inside))


def text_of(answer: Any) -> str:
    return "".join(part.text for part in answer.content)


def test_every_tool_has_a_schema_that_matches_its_requests(answered):
    tools, _ = answered
    assert set(tools) == {"catalog", "recommend", "compare", "explain", "analyze", "check"}
    for name, (tool, supplied) in CALLS.items():
        schema = tools[tool].input_schema
        if name != "wrong type":
            jsonschema.validate(supplied, schema)
        assert all("description" in each or each.get("title") for each in schema["properties"].values())
        assert tools[tool].description


@pytest.mark.parametrize(
    "name", ["recommend", "backend", "card file", "explain", "compare", "the other", "right", "wrong", "out of bounds"]
)
def test_tools_answer_requests(answered, name):
    answer = answered[1][name]
    assert not answer.is_error, text_of(answer)
    assert json.loads(text_of(answer)) == answer.structured_content


def test_check_tool_reports_whether_a_kernel_is_correct(answered):
    right, wrong, beyond = (answered[1][name].structured_content for name in ("right", "wrong", "out of bounds"))
    assert right["correct"]
    assert (wrong["correct"], wrong["outcome"]) == (False, "incorrect")
    assert "offset 4000 of x" in beyond["message"]


def test_endless_kernel_times_out_and_the_server_continues(answered):
    answer = answered[1]["endless"].structured_content
    assert answer["outcome"] == "timeout"
    assert not answered[1]["after all that"].is_error


@pytest.mark.parametrize(("name", "message"), [
    ("include", "no other file is read"), ("escape", "outside the folder"), ("absolute", "outside the folder"),
    ("value file", "files are not read here"), ("network file", "unknown workload"), ("huge", "at most"),
    ("long", "larger than"), ("no such op", "did you mean matmul"), ("no such backend", "did you mean vLLM"),
    ("wrong type", "recommend: top: "), ("two kernels", "name one as in"),
    ("reference", "unknown function in a reference"),
    ("objects", "zeros is an array of object; expected whole or floating-point numbers"),
    ("hidden include", "no other file is read"),
])  # fmt: skip
def test_hostile_requests_are_refused_in_one_line(answered, name, message):
    answer = answered[1][name]
    assert answer.is_error
    assert message in text_of(answer)
    assert "\n" not in text_of(answer)
    assert "root:" not in text_of(answer)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the worker in /proc")
def test_catalog_answers_while_all_check_threads_are_busy(tmp_path):
    """The catalog must answer while 60 endless checks run, and the workers must end when the server is killed."""

    async def worker_during_checks() -> int:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        pids = tmp_path / "pid"
        program = f"import os, pathlib; pathlib.Path({str(pids)!r}).write_text(str(os.getpid()));"
        program += "from kernrec.cli.app import run; run(['mcp', '--time-limit', '300s'])"
        parameters = StdioServerParameters(command=sys.executable, args=["-c", program], env=environment())
        endless = {**CHECK, "source": AXPY.replace("y[i] =", "while (true) y[i] +=")}
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as opened:
            await opened.initialize()
            checks = [asyncio.create_task(opened.call_tool("check", endless)) for _ in range(60)]
            catalog = await opened.call_tool("catalog", {})
            assert not catalog.is_error
            assert not any(check.done() for check in checks)
            server = int(pids.read_text())
            worker = 0
            while not (worker := next(iter(children(server)), 0)):
                await asyncio.sleep(0.05)
            os.kill(server, signal.SIGKILL)
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)
            return worker

    worker = asyncio.run(worker_during_checks())
    while is_running(worker):
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    text = "".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "kernel.cu").write_text("code")
    (tmp_path / "secret").write_text("secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    return Folder(inside)


def test_file_inside_the_folder_is_read(folder):
    assert folder.text("sub/kernel.cu") == "code"
    assert folder.text("sub/../sub/kernel.cu") == "code"


def test_file_outside_the_folder_is_refused(folder, refuses):
    refuses(lambda name: folder.text(name), [
        "../secret", "/etc/passwd", "link", "up/secret", "sub/../../secret", "", ".", "nothing", "a\0b", "~/x",
    ])  # fmt: skip


def test_server_without_a_folder_reads_no_file(refuses):
    refuses(lambda: Folder(None).text("kernel.cu"))


def test_gpu_file_is_accepted_only_inside_the_folder(folder, tmp_path):
    card = gpu_text(find_gpu("l4"), "mine")
    (tmp_path / "inside" / "mine.toml").write_text(card)
    (tmp_path / "outside.toml").write_text(card)
    names = folder.gpu_names("h200, mine.toml").split(",")
    assert names[0] == "h200"
    assert find_gpu(names[1]).sms == find_gpu("l4").sms
    with pytest.raises(UsageError, match="outside the folder"):
        folder.gpu_names("../outside.toml")
    (tmp_path / "inside" / "mine.toml").write_text(card.replace("sms = 58", "sms = 0"))
    with pytest.raises(UsageError, match="sms") as refused:
        folder.gpu_names("mine.toml")
    assert str(tmp_path) not in str(refused.value)
