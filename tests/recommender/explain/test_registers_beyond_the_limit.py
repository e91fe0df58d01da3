"""Test that a block needing more registers than an SM has is refused with the reason, without dividing by zero."""

import os

import pytest

from kernrec.gpu import find_gpu
from kernrec.recommender import Recommender, Request
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.context import Context
from kernrec.recommender.explain.report import report
from kernrec.recommender.request import Objective, Query
from tests.helpers.command import run_here
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside
from tests.helpers.recording import row_of, store_rows

pytestmark = pytest.mark.usefixtures("compiled_here")

GPU = find_gpu("rtx3090")
BEYOND, WITHIN = {"threads": 640, "registers": 104}, {"threads": 640, "registers": 88}
"""An SM has 65,536 registers. The block of 20 warps needs 66,560 in `BEYOND`, and fewer than 65,536 in `WITHIN`."""
SPEC = beside(__file__, "registers_beyond_the_limit.toml")
EXPLAINED = Request(GPU.name, kernel="row_products", query=Query(Objective.LATENCY))


@pytest.fixture(scope="module")
def database(nvrtc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("row_products")
    kernel = written_kernel(folder, beside(__file__, "registers_beyond_the_limit.cu"), SPEC)
    path = folder / "own.duckdb"
    analyze(kernel, kernel.definition.problem(), GPU, path, options=ProfilingOptions(processes=1))
    return path


def test_config_over_the_register_limit_is_excluded_and_explained(database, refuses):
    answer = Recommender([database]).answer(Request(GPU.name, kernel="row_products"))
    assert {tuple(recommendation.config.items()) for recommendation in answer.recommendations} == {
        tuple(WITHIN.items())
    }
    assert all(recommendation.occupancy > 0.0 for recommendation in answer.recommendations)
    refuses(lambda: report(EXPLAINED, Context([database]), BEYOND))
    report(EXPLAINED, Context([database]), WITHIN)


def test_measured_config_over_the_register_limit_has_one_resident_block(database, tmp_path):
    kernel = Context([database]).kernel("row_products")
    row = row_of(GPU.name, kernel, BEYOND, kernel.definition.problem()) | {"latency_s": 1e-5, "energy_j": 1e-3}
    measured = store_rows(tmp_path / "measured.duckdb", [row])
    explained = report(EXPLAINED, Context([database, measured]), BEYOND).subject
    assert explained.recommendation.source == "measured"
    (launch,) = explained.launches
    assert (launch.resident_blocks, launch.capped_by) == (1, "registers")
    assert explained.recommendation.occupancy == launch.occupancy == pytest.approx(20 / 48)


def test_kernel_without_float_instructions_has_no_roofline_share(tmp_path):
    pytest.importorskip("cupy")
    (tmp_path / "steps.cu").write_text(
        'extern "C" __global__ void steps(const int *x, int *y) { int i = blockIdx.x * THREADS + threadIdx.x;'
        " y[i] = x[i] ^ (x[i] >> 3); }"
    )
    (tmp_path / "steps.toml").write_text(
        SPEC[: SPEC.index("[problem]")].replace("row_products", "steps") + beside(__file__, "without_floats.toml")
    )
    own = {"KERNREC_DB": str(tmp_path / "own.duckdb")} | {k: v for k, v in os.environ.items() if k != "KERNREC_DB"}
    done = run_here("analyze", tmp_path / "steps.cu", "--spec", tmp_path / "steps.toml", "--gpu", "t4", variables=own)
    assert done.stdout.startswith("steps[n=65536]i32 on ")
    done = run_here("explain", "--kernel", "steps", "--gpu", "t4", variables=own)
    assert done.returncode == 0, done.stderr
    assert "roofline: no floating-point operations; " in done.stdout
    assert "TFLOP/s" not in done.stdout
