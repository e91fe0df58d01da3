import os
import random
import shutil

import numpy as np
import pytest

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, able_kernels, all_kernels, bind_launches, find_kernel, kernel_names, library
from kernrec.op import Problem, find_op
from tests.helpers.trial import shapes

# Keys are ops, or kernels that support only some of their op's problems.
PROBLEMS = {
    "matmul": shapes("m=4096,n=4096,k=4096 m=1,n=77,k=3 m=500,n=36,k=1000"),
    "conv2d": shapes(
        "c=64,h=56,w=56,k=64,padding=1 c=3,h=7,w=9,k=5,r=2,s=3,stride=2,padding=1 "
        "n=8,c=128,h=28,w=28,k=256,r=1,s=1,stride=2"
    ),
    "matmul_wgmma": shapes("m=4096,n=4096,k=4096 m=1,n=8,k=16 m=1000,n=136,k=528,bias=1,activation=3"),
    "matmul_tcgen05": shapes("m=4096,n=4096,k=4096 m=1,n=8,k=16 m=1000,n=136,k=528,bias=1,activation=3"),
    "matmul_mma_8bit": shapes(
        "m=4096,n=4096,k=4096,scales=1 m=1,n=77,k=6,output=2 m=1000,n=130,k=516,bias=1,activation=3"
    ),
    "conv2d_direct": shapes(
        "c=3,h=224,w=224,k=64,r=7,s=7,stride=2,padding=3 c=3,h=7,w=9,k=5,r=2,s=3,stride=2,padding=1 "
        "n=8,c=128,h=28,w=28,k=128,padding=1,groups=32"
    ),
    "conv2d_depthwise": shapes(
        "c=32,h=112,w=112,k=32,padding=1,groups=32 n=2,c=9,h=7,w=7,k=9,r=5,s=5,stride=2,padding=2,groups=9 "
        "n=3,c=40,h=14,w=13,k=40,r=7,s=7,padding=3,groups=40"
    ),
    "attention_wgmma": shapes(
        "heads=32,kv_heads=8,queries=2048,head_dim=128,causal=1 "
        "batch=3,heads=6,kv_heads=2,queries=1,keys=1000,head_dim=64 heads=8,queries=300,keys=77,head_dim=48"
    ),
    "attention": shapes(
        "heads=32,kv_heads=8,queries=2048,head_dim=128,causal=1 "
        "batch=3,heads=6,kv_heads=2,queries=1,keys=1000,head_dim=64 heads=8,queries=300,keys=77,head_dim=40"
    ),
}


CASES = pytest.mark.parametrize(
    ("kernel", "dtype", "layout"),
    [(kernel, dtype, layout) for kernel in all_kernels() for dtype in kernel.dtypes for layout in kernel.layouts],
    ids=lambda value: getattr(value, "name", str(value)),
)


def _problems(kernel: Kernel, dtype: str, layout: str) -> list[Problem]:
    dims = PROBLEMS.get(kernel.name, PROBLEMS.get(kernel.op, []))
    if kernel.name == "matmul_skinny":
        dims = [d | {"m": min(d["m"], 16)} for d in dims]
    return [find_op(kernel.op).problem(dtype=dtype, layout=layout, **d) for d in dims]


@CASES
def test_every_kernel_has_tens_to_thousands_of_configs_on_every_architecture(kernel, dtype, layout):
    for sm in (75, 80, 86, 89, 90, 100, 120):
        if kernel.runs_on(dtype, sm):
            assert 20 <= len(Space(kernel, sm, limits(sm), dtype, layout)) <= 8000


def test_kernel_for_one_architecture_is_offered_only_on_it(refuses):
    offered = {sm: {kernel.name for kernel in able_kernels("matmul", "bf16", "nt", sm)} for sm in (89, 90, 100)}
    assert [sm for sm, names in offered.items() if "matmul_wgmma" in names] == [90]
    refuses(lambda: able_kernels("matmul", "f8e4m3", "nt", 86))
    assert [kernel.name for kernel in able_kernels("attention", "f8e4m3", "bshd", 90)] == ["attention_wgmma"]
    for sm in (80, 89, 100, 120):
        with pytest.raises(UsageError, match=rf"f8e4m3, bshd on sm_{sm}; .*; nearest to f8e4m3 is bf16"):
            able_kernels("attention", "f8e4m3", "bshd", sm)


@CASES
def test_every_awkward_problem_has_a_config(kernel, dtype, layout):
    sm = max(kernel.least_sm(dtype), 80)
    space = Space(kernel, sm, limits(sm), dtype, layout)
    for problem in _problems(kernel, dtype, layout):
        assert len(space.at(problem).rows) > 0, problem.key


@CASES
def test_library_launches_are_equal_in_bulk_and_per_config(kernel, dtype, layout):
    sm = max(kernel.least_sm(dtype), 89)
    space = Space(kernel, sm, limits(sm), dtype, layout)
    for problem in _problems(kernel, dtype, layout):
        here = space.at(problem)
        rows = np.array(random.Random(0).sample(here.rows.tolist(), min(8, len(here.rows))))
        columns, depths = [], []
        for launch in kernel.launches:
            expressions = (*launch.grid, *launch.block, launch.shared, *launch.trips.values())
            columns.append([np.broadcast_to(here.column(each, rows), len(rows)) for each in expressions])
            depths.append({loop: np.broadcast_to(here.column(d, rows), len(rows)) for loop, d in launch.depth.items()})
        for place, row in enumerate(rows.tolist()):
            for bound in bind_launches(kernel, space.config(row), problem, sm):
                expected = [*bound.grid, *bound.block, bound.shared_bytes, *bound.trips.values()]
                assert [int(column[place]) for column in columns[bound.index]] == expected
                for loop, depth in depths[bound.index].items():
                    assert 0 <= depth[place] <= bound.trips[loop]


def test_unknown_kernel_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError) as refusal:
        find_kernel("matmul_smit")
    assert "unknown kernel 'matmul_smit'" in str(refusal.value)
    if "matmul_simt" in kernel_names():
        assert "did you mean matmul_simt" in str(refusal.value)


@pytest.mark.parametrize("changed", ["library/rows.cuh", "library/softmax_rows/kernel.cu", "cuda_program.py"])
def test_source_is_read_again_if_an_input_changes_but_not_its_size_and_time(changed, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    folder, reads = tmp_path / "kernel", list[str]()
    shutil.copytree(library._FOLDER.parent, folder)
    monkeypatch.setattr(library, "_FOLDER", folder / "library")
    monkeypatch.setattr(library, "read_source", lambda _: reads.append("") or f"version {len(reads)}")

    def source() -> str:
        library._shared_by_sources.cache_clear()
        return library._source(folder / "library" / "softmax_rows" / "kernel.cu")

    assert [source(), source()] == ["version 1", "version 1"]
    path = folder / changed
    stat, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-2] + b" " + content[-1:])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert [source(), source()] == ["version 2", "version 2"]
    library._shared_by_sources.cache_clear()
