"""The convolution kernels on tensor cores, direct and depthwise: what holds of them beyond test_kernels.py."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, find_kernel
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, reference
from kernrec.ptx import EmulationError
from tests.helpers.counted import profiled, unpredicted
from tests.helpers.kernel_code import Config, assembled, not_assembled, ptx_of
from tests.helpers.trial import execute

pytestmark = pytest.mark.slow

MMA, DIRECT, DEPTHWISE = map(find_kernel, ("conv2d_implicit_gemm_mma", "conv2d_direct", "conv2d_depthwise"))
KERNELS = (MMA, DIRECT, DEPTHWISE)
ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 0.0, "f16": 2.0**-25, "bf16": 2.0**-134}


@dataclasses.dataclass(frozen=True)
class Case:
    """A config of a kernel on a problem of awkward sizes."""

    kernel: Kernel
    values: tuple[int, ...]
    dims: tuple[tuple[str, int], ...]
    dtype: str
    layout: str
    sm: int

    @property
    def config(self) -> Config:
        return dict(zip((tunable.name for tunable in self.kernel.tunables), self.values, strict=True))

    @property
    def problem(self) -> Problem:
        return find_op("conv2d").problem(dtype=self.dtype, layout=self.layout, **dict(self.dims))

    def __str__(self) -> str:
        dims = ",".join(f"{name}{size}" for name, size in self.dims)
        return f"{self.kernel.name[7:]}-{'-'.join(map(str, self.values))}-{dims}-{self.layout}-{self.dtype}-{self.sm}"

    def using(self, kernel: Kernel) -> "Case":
        return dataclasses.replace(self, kernel=kernel)


def _case(kernel: Kernel, values: tuple[int, ...], dims: Mapping[str, int], dtype: str, layout: str, sm: int) -> Case:
    return Case(kernel, values, tuple(dims.items()), dtype, layout, sm)


# block_m, block_n, block_k, warp_m, warp_n, vector, stages, fragments, raster, split_k
MMA_CONFIGS = (
    (32, 32, 64, 16, 32, 8, 3, 2, 8, 1), (64, 64, 32, 32, 32, 8, 4, 2, 1, 4), (128, 64, 64, 32, 64, 8, 3, 1, 1, 2),
    (64, 128, 32, 64, 32, 8, 4, 1, 1, 2), (128, 128, 32, 64, 64, 8, 4, 2, 1, 1), (128, 256, 64, 64, 64, 8, 2, 2, 1, 1),
    (256, 64, 32, 64, 32, 8, 4, 2, 1, 2), (64, 64, 32, 32, 32, 2, 4, 2, 1, 2), (32, 64, 32, 32, 32, 1, 2, 1, 8, 4),
    (128, 32, 32, 32, 32, 1, 2, 1, 1, 1),
)  # fmt: skip
TURING_CONFIGS = (
    (32, 32, 32, 16, 32, 8, 2, 1, 8, 1),
    (64, 64, 32, 64, 32, 8, 2, 1, 1, 4),
    (128, 256, 32, 64, 64, 8, 2, 1, 1, 1),
    (64, 128, 32, 32, 32, 1, 2, 1, 1, 2),
)
"""Of sm_75, where tiles come through registers."""
MMA_PROBLEMS = {
    8: (
        {"n": 3, "c": 136, "h": 7, "w": 9, "k": 40, "r": 1, "s": 1},
        {"n": 2, "c": 16, "h": 9, "w": 11, "k": 72, "r": 3, "s": 3, "padding": 1},
        {"c": 24, "h": 15, "w": 10, "k": 8, "r": 5, "s": 3, "stride": 2, "padding": 2},
        {"c": 48, "h": 10, "w": 9, "k": 144, "r": 3, "s": 3, "dilation": 2, "padding": 2, "groups": 2},
    ),
    2: (
        {"c": 4, "h": 12, "w": 11, "k": 70, "r": 3, "s": 3, "padding": 1},
        {"n": 2, "c": 30, "h": 9, "w": 5, "k": 18, "r": 2, "s": 3, "stride": 3, "dilation": 2, "groups": 3},
    ),
    1: (
        {"n": 2, "c": 3, "h": 23, "w": 19, "k": 35, "r": 7, "s": 7, "stride": 2, "padding": 3},
        {"c": 3, "h": 19, "w": 14, "k": 9, "r": 11, "s": 9, "dilation": 2, "padding": 4, "groups": 3},
    ),
}

# packs, filters, pixels
DIRECT_CONFIGS = {
    "nchw": ((1, 1, 4), (4, 1, 8), (1, 4, 1), (4, 4, 4), (1, 8, 2), (4, 8, 4), (1, 16, 1), (4, 16, 4)),
    "nhwc": ((8, 1, 8), (32, 1, 4), (16, 4, 1), (8, 4, 4), (32, 4, 2), (8, 8, 4), (16, 8, 2), (32, 8, 1)),
}
DIRECT_PROBLEMS = (
    {"n": 2, "c": 3, "h": 11, "w": 9, "k": 16, "r": 7, "s": 7, "stride": 2, "padding": 3},
    {"n": 2, "c": 20, "h": 7, "w": 6, "k": 80, "r": 3, "s": 3, "padding": 1, "groups": 5},
    {"c": 3, "h": 11, "w": 9, "k": 48, "r": 3, "s": 2, "dilation": 3, "padding": 2, "groups": 3},
    {"n": 3, "c": 13, "h": 9, "w": 5, "k": 48, "r": 1, "s": 1, "stride": 3},
)

# filter, step, lanes, tile_p, tile_q, out_p, out_q, vector (0: 16 bytes), staged
DEPTHWISE_CONFIGS = {
    "nchw": (
        (3, 1, 16, 8, 8, 2, 4, 1, 1), (3, 1, 8, 8, 16, 2, 4, 4, 1), (3, 1, 2, 16, 32, 2, 4, 2, 1),
        (3, 2, 1, 16, 32, 2, 2, 1, 1), (3, 2, 8, 8, 8, 2, 2, 2, 1), (5, 1, 4, 16, 16, 2, 4, 4, 1),
        (5, 2, 8, 8, 8, 2, 2, 1, 1), (7, 1, 16, 8, 8, 2, 4, 2, 1),
    ),
    "nhwc": (
        (3, 1, 16, 8, 8, 2, 4, 1, 0), (3, 1, 4, 8, 16, 1, 4, 0, 1), (3, 1, 16, 4, 8, 2, 2, 0, 0),
        (3, 2, 8, 8, 8, 2, 2, 0, 1), (3, 2, 8, 8, 16, 2, 4, 0, 0), (5, 1, 8, 8, 16, 2, 4, 0, 1),
        (5, 2, 8, 8, 8, 2, 2, 0, 0), (7, 1, 8, 8, 8, 2, 2, 0, 1),
    ),
}  # fmt: skip


def _mma_cases() -> Iterator[Case]:
    for i, values in enumerate(MMA_CONFIGS):
        for j, dims in enumerate(MMA_PROBLEMS[values[5]]):
            yield _case(MMA, values, dims, "bf16" if (i + j) % 3 == 0 else "f16", "nhwc", 80 if j % 2 else 90)
    for values in TURING_CONFIGS:
        for dims in MMA_PROBLEMS[values[5]]:
            yield _case(MMA, values, dims, "f16", "nhwc", 75)


def _direct_cases() -> Iterator[Case]:
    for layout, configs in DIRECT_CONFIGS.items():
        for i, values in enumerate(configs):
            for j in (i, i + 1):
                dims, dtype = DIRECT_PROBLEMS[j % len(DIRECT_PROBLEMS)], DIRECT.dtypes[j % 3]
                yield _case(DIRECT, values, dims, dtype, layout, 75 if i % 4 // 2 else 86)


def _depthwise_cases() -> Iterator[Case]:
    """More than one tile and one block of channels each way, and no multiples of more than the config needs."""
    for layout, configs in DEPTHWISE_CONFIGS.items():
        for i, values in enumerate(configs):
            dtype = DEPTHWISE.dtypes[i % 3]
            vector = values[7] or (4 if dtype == "f32" else 8)
            filter_, step, lanes, tile_p, tile_q = values[:5]
            channels = (lanes + 3) * vector if layout == "nhwc" else lanes + 3
            beyond = 0 if i == 2 else 3 if layout == "nhwc" else 3 * vector
            width = (tile_q + beyond) * step
            dims = {"n": 2, "c": channels, "h": tile_p * step + 3, "w": width, "k": channels, "groups": channels}
            dims |= {"r": filter_, "s": filter_, "stride": step, "padding": filter_ // 2}
            if layout == "nhwc" and i % 2:
                dims["padding"] = 0
            yield _case(DEPTHWISE, (*values[:7], vector, values[8]), dims, dtype, layout, 75 if i % 4 // 2 else 86)


CASES = (*_mma_cases(), *_direct_cases(), *_depthwise_cases())
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=str)
EACH_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def _code(case: Case) -> tuple[Kernel, Config, str, str, int]:
    """The arguments that a case's code is compiled from."""
    return case.kernel, case.config, case.dtype, case.layout, case.sm


def _run(case: Case, operands: dict[str, np.ndarray]) -> np.ndarray:
    """y as the kernel leaves it in memory; a race in shared memory is an error."""
    ptx = ptx_of(*_code(case))
    return execute(case.kernel, case.config, case.problem, case.sm, ptx, operands, budget=5_000_000)["y"]


def _is_right(case: Case, infinite: bool = False) -> bool:
    """Whether y is the float64 reference's within what f32 sums of its terms, rounded once, may be off.

    infinite: a few neighboring elements of x are, and outputs that do not meet them must not notice.
    """
    problem = case.problem
    operands = inputs(problem, seed=1)
    if infinite:
        image = operands["x"][0] if case.layout == "nchw" else operands["x"][0].transpose(2, 0, 1)
        down, right = image.shape[1] // 2, image.shape[2] // 2
        image[0, down - 1 : down + 1, right - 1 : right + 1] = encode_elements(np.array(np.inf), case.dtype)
    absolute = {
        name: encode_elements(np.abs(decode_elements(value, case.dtype)), case.dtype)
        for name, value in operands.items()
    }
    terms = problem.names["c"] // problem.names["groups"] * problem.names["r"] * problem.names["s"]
    with np.errstate(invalid="ignore"):
        expected, magnitude = (reference(problem, tensors)["y"] for tensors in (operands, absolute))
        bound = (terms + 1) * 2.0**-24 * magnitude
        bound += ROUNDING[case.dtype] * (np.abs(expected) + bound) + LEAST[case.dtype]
        near = np.abs(decode_elements(_run(case, operands), case.dtype) - expected) <= bound
    return bool((near | ~np.isfinite(expected)).all())


@pytest.mark.every(6)
@EACH_CASE
def test_corners_of_the_space_compute_awkward_convolutions_without_races(case):
    assert case.kernel.misfit(case.config, case.problem, limits(case.sm)) is None
    assert _is_right(case)


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES[1::5], ids=str)
def test_an_infinity_is_noticed_by_the_outputs_that_meet_it_alone(case):
    assert _is_right(case, infinite=True)


@EACH_KERNEL
def test_each_layout_has_eight_tested_configs(kernel):
    for layout in kernel.layouts:
        assert len({case.values[:7] for case in CASES if case.kernel is kernel and case.layout == layout}) >= 8


@pytest.mark.every(3)
@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_edges_issue_exactly_what_the_profile_of_full_tiles_says(case):
    compiled = not_assembled(*_code(case))
    configs = [case.config]
    if case.kernel is MMA:
        configs += [case.config | {"split_k": split_k} for split_k in (2, 4, 8)]
    of_case = case.kernel, configs, case.config, case.problem, case.sm
    assert unpredicted(*of_case, compiled, "issue barriers") == []


@EACH_KERNEL
@pytest.mark.parametrize("sm", [75, 80, 86, 89, 90, 100, 120])
def test_no_more_codes_than_can_be_profiled_soon(kernel, sm):
    for dtype in [dtype for dtype in kernel.dtypes if sm >= kernel.least_sm(dtype)]:
        for layout in kernel.layouts:
            codes = len(Space(kernel, sm, limits(sm), dtype, layout).variants.keys)
            assert 20 <= codes <= (120 if kernel is MMA else 80)


@pytest.mark.parametrize(("case", "most"), [
    (_case(MMA, (128, 256, 64, 64, 64, 8, 2, 2, 1, 1), {}, "f16", "nhwc", 86), 255),
    (_case(MMA, (256, 64, 64, 64, 32, 8, 3, 1, 1, 1), {}, "bf16", "nhwc", 86), 128),
    (_case(MMA, (128, 128, 32, 64, 64, 8, 2, 1, 1, 1), {}, "f16", "nhwc", 75), 255),
    (_case(DIRECT, (4, 16, 4), {}, "f16", "nchw", 75), 255),
    (_case(DEPTHWISE, (3, 2, 8, 8, 16, 2, 4, 8, 0), {}, "f16", "nhwc", 75), 255),
], ids=str)  # fmt: skip
def test_the_codes_hungriest_for_registers_do_not_spill(case, most):
    resources = assembled(*_code(case)).resources[case.kernel.launches[0].entry]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert resources.registers <= most


def _broken(kernel: Kernel, old: str, new: str) -> Kernel:
    """A copy of the kernel with one place of its source broken."""
    assert kernel.source.count(old) == 1, f"{old!r} must occur once"
    return dataclasses.replace(kernel, source=kernel.source.replace(old, new))


def _notices(old: str, new: str, met_by: Config, infinite: bool = False) -> bool:
    """Whether a case of `MMA` whose config has `met_by` fails once the source is broken."""
    broken = _broken(MMA, old, new)
    cases = [case for case in CASES if case.kernel is MMA and met_by.items() <= case.config.items()]
    assert cases
    for case in cases:
        try:
            if not _is_right(case.using(broken), infinite):
                return True
        except EmulationError:
            return True
    return False


@pytest.mark.parametrize(
    ("old", "new", "vector"),
    [("tap.meets(g, window[i]) && k < k_end", "tap.meets(g, window[i])", 8), ("k + half < k_end", "k < k_end", 1)],
)
def test_reading_inputs_past_the_reduction_is_noticed_where_one_is_infinite(old, new, vector):
    assert _notices(old, new, {"vector": vector}, infinite=True)


@pytest.mark.parametrize(
    "new", ["wait_for_copies<STAGES - 1>();\n        __syncthreads();", "wait_for_copies<STAGES - 2>();"]
)
def test_reading_a_tile_before_it_has_landed_for_all_is_noticed_with_one_set_of_fragments(new):
    old = "wait_for_copies<STAGES - 2>();\n        __syncthreads();"
    place = "  // the tile of this trip"
    assert _notices(old + place, new + place, {"fragments": 1, "vector": 8})


def test_lines_of_tiles_in_nchw_are_read_with_few_bank_conflicts():
    for case in CASES:
        if case.kernel is DEPTHWISE and case.layout == "nchw" and case.dtype == "f32":
            compiled = not_assembled(*_code(case))
            profile = profiled(DEPTHWISE, [case.config], "f32", "nchw", case.sm, compiled)[0].profile
            counts = profile.counts({"block": 1})
            assert counts["shared.load_wavefronts"] <= 3 * counts["shared.load_ideal"]
