"""Test reading networks from ONNX graphs: layers, epilogues, unsupported nodes and open dimensions."""

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="ONNX workloads need the extra onnx")

import numpy as np  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from kernrec.errors import UsageError  # noqa: E402
from kernrec.interop.onnx_layers import read_onnx  # noqa: E402
from kernrec.interop.workload_files import find_workload  # noqa: E402


@pytest.fixture
def save(tmp_path):
    """Return a function that writes an ONNX model. Shapes are given by name, and open dimensions are strings."""

    def write(nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, tuple[int, ...]]) -> Path:
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()],
        )
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), str(path))
        return path

    return write


def keys(path: Path, **fixed: int) -> list[tuple[str, int]]:
    return [(layer.problem.key, layer.count) for layer in read_onnx(path, fixed).layers]


def test_linear_layer_includes_its_bias_and_activation(save):
    path = save(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
            helper.make_node("Relu", ["y"], ["z"]),
            helper.make_node("MatMul", ["z", "v"], ["u"]),
            helper.make_node("Add", ["u", "c"], ["t"]),
            helper.make_node("Softmax", ["t"], ["s"], axis=-1),
        ],
        {"x": [64, 32]},
        {"w": (48, 32), "b": (48,), "v": (48, 8), "c": (8,)},
    )
    assert keys(path) == [
        ("matmul[m=64,n=48,k=32,bias=1,activation=1]f32,nt", 1),
        ("matmul[m=64,n=8,k=48,bias=1]f32,nn", 1),
        ("softmax[rows=64,columns=8]f32,row", 1),
    ]
    assert not read_onnx(path, {}).unknown


def test_transposed_weights_keep_their_layout_and_few_rows_become_matvec(save):
    path = save(
        [
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "wt"], ["y"]),
            helper.make_node("MatMul", ["r", "v"], ["q"]),
            helper.make_node("Concat", ["y", "y"], ["z"], axis=0),
        ],
        {"x": [2, 32, 16], "r": [1, 16]},
        {"w": (24, 16), "v": (16, 8)},
    )
    assert keys(path) == [("matmul[m=64,n=24,k=16]f32,nt", 1), ("matvec[m=8,k=16,n=1]f32,row", 1)]
    assert read_onnx(path, {}).unknown == ("1 of Concat",)


def test_convolution_reports_the_fused_parts_it_omits(save):
    path = save(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "v"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c", "b"], ["d"]),
            helper.make_node("Conv", ["d", "u"], ["e"], kernel_shape=[1, 3], pads=[0, 1, 0, 0]),
            helper.make_node("GlobalAveragePool", ["d"], ["f"]),
            helper.make_node("Flatten", ["f"], ["g"]),
        ],
        {"x": [1, 3, 32, 32]},
        {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3), "u": (8, 8, 1, 3)},
    )
    assert keys(path) == [
        ("conv2d[n=1,c=3,h=32,w=32,k=8,r=3,s=3,stride=2,padding=1,dilation=1,groups=1]f32,nchw", 1),
        ("conv2d[n=1,c=8,h=16,w=16,k=8,r=3,s=3,stride=1,padding=1,dilation=1,groups=1]f32,nchw", 1),
        ("elementwise[n=2048]f32,row", 1),
        ("reduce[rows=8,columns=256]f32,row", 1),
    ]
    unknown = read_onnx(path, {}).unknown
    assert unknown == ("1 of Conv", "1 of Relu, treated as fused into the preceding convolution")


def test_unfused_attention_becomes_batched_matmuls_and_a_transpose(save):
    path = save(
        [
            helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", ["q", "kt"], ["s"]),
            helper.make_node("Softmax", ["s"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["o"]),
        ],
        {"q": [1, 4, 64, 16], "k": [1, 1, 64, 16], "v": [1, 4, 64, 16]},
        {},
    )
    assert keys(path) == [
        ("transpose[rows=64,columns=16]f32,row", 1),
        ("matmul[m=256,n=64,k=16]f32,nn", 1),
        ("softmax[rows=256,columns=64]f32,row", 1),
        ("matmul[m=64,n=16,k=64,batch=4]f32,nn", 1),
    ]


def test_message_names_onnx_dimensions_without_a_value(save, refuses):
    path = save([helper.make_node("Softmax", ["x"], ["y"])], {"x": ["batch", "tokens", 32]}, {})
    refuses(lambda: find_workload(str(path)))
    refuses(lambda: read_onnx(path, {"sequence": 3}))
    assert keys(path, batch=2, tokens=5) == [("softmax[rows=10,columns=32]f32,row", 1)]


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"not a model", b"\x08\x07\x3a\xff\xff\xff\xff\x0f"])
def test_file_that_is_not_onnx_gives_a_one_line_error(write, content):
    path = write(content, "x.onnx")
    with pytest.raises(UsageError, match=r"x\.onnx") as refused:
        find_workload(str(path))
    assert "\n" not in str(refused.value)


def test_separate_process_reads_the_same_layers(save):
    path = save(
        [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("Sin", ["y"], ["z"])], {"x": ["b", 32]}, {}
    )
    network = find_workload(str(path), {"b": 4})
    assert (network.layers, network.unknown) == (read_onnx(path, {"b": 4}).layers, ("1 of Sin",))
