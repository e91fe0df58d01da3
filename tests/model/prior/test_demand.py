"""Test the conversion of event counts to pipe clocks and energy, with profiles small enough to calculate by hand."""

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.model.prior.demand import QUANTITIES, demand, events
from kernrec.model.prior.microarchitecture import microarchitecture
from kernrec.model.prior.power import PowerModel


def rates(gpu: str, **counts: float) -> dict[str, float]:
    """Return the demand of one trip with these event counts; `issue__fma32` stands for issue.fma32."""
    card = find_gpu(gpu)
    names = tuple(name.replace("__", ".") for name in counts)
    coefficients = np.array([[[0.0, count] for count in counts.values()]])
    demands = demand(card, PowerModel.for_gpu(card), names, ("block", "trip"), coefficients)
    assert not demands.rates[0].any()
    return dict(zip(QUANTITIES, demands.rates[1][:, 0].tolist(), strict=True))


@pytest.mark.parametrize(("gpu", "lanes"), [("a100", 64), ("rtx3090", 128), ("rtx4090", 128), ("t4", 64)])
def test_fma_occupies_its_lanes(gpu, lanes):
    assert rates(gpu, issue=64, issue__fma32=64)["fma"] == 64 * 32 / lanes


def test_f64_pipe_takes_20_clocks_per_instruction_with_two_lanes():
    counts = {"issue": 8.0, "issue__f64": 4.0, "issue__cvt64": 2.0, "issue__mufu": 2.0}
    few, many = rates("rtx3090", **counts), rates("a100", **counts)
    assert few["f64"] == pytest.approx((4 + 2) * 20.0)
    assert few["special"] == 2 * 2.0
    assert many["f64"] == 4 * 1.0
    assert many["special"] == 2 * 2.0 + 2 * 2.0  # conversions use the pipe of special functions


@pytest.mark.parametrize(
    ("gpu", "slow"),
    [("rtx2080ti", {"cvt", "i2f", "f2i"}), ("a100", {"i2f", "f2i"}), ("rtx3090", {"f2i"}), ("h100", {"f2i"})],
)
def test_unpacked_conversions_take_two_clocks_of_the_special_pipe(gpu, slow):
    for name in ("cvt", "i2f", "f2i"):
        taken = rates(gpu, issue=4, **{f"issue__{name}": 4})
        assert (taken["special"], taken["int"]) == ((8.0, 0.0) if name in slow else (0.0, 2.0))


def test_register_moves_are_the_assemblers_business():
    assert rates("a100", issue=100, issue__mov=60)["issue"] == pytest.approx(rates("a100", issue=40)["issue"])


def test_integer_additions_leave_the_float_pipe_free_and_products_use_it():
    floats = {"issue": 96.0, "issue__fma32": 64.0}
    for gpu in ("a100", "rtx3090", "t4"):
        alone = rates(gpu, **floats)
        assert rates(gpu, **floats, issue__alu=32.0)["fma"] == alone["fma"]
        assert rates(gpu, **floats, issue__alu=32.0)["int"] > alone["int"] == 0
        assert rates(gpu, **floats, issue__imad=32.0)["fma"] > alone["fma"]
        assert rates(gpu, **floats, issue__imad=32.0)["int"] == 0


def test_half_of_128_float_lanes_multiply_integers():
    assert rates("rtx3090", issue=64, issue__imad=64)["fma"] == 2 * rates("rtx3090", issue=64, issue__fma32=64)["fma"]
    assert rates("t4", issue=64, issue__imad=64)["fma"] == rates("t4", issue=64, issue__fma32=64)["fma"]
    # Half of the lanes multiply the integers; the other half computes floats at the same time.
    mixed = rates("rtx3090", issue=96, issue__fma32=64, issue__imad=32)["fma"]
    assert mixed == pytest.approx(rates("rtx3090", issue=96, issue__fma32=96)["fma"])


def test_float_arithmetic_issues_less_often_than_other_instructions():
    floats, others = rates("rtx3090", issue=64, issue__fma32=64), rates("rtx3090", issue=64, issue__alu=64)
    assert floats["issue"] > others["issue"] > 64 / 4


def test_tensor_instruction_occupies_the_tensor_cores_at_their_rate():
    flops = 2 * 16 * 8 * 16
    per_clock = rates("rtx3090", issue=1, issue__mma=1, mma__f16=flops)
    assert per_clock["tensor"] == flops / 2 / find_gpu("rtx3090").tensor_fma_per_clk_sm["f16"]
    assert per_clock["core_j"] > rates("rtx3090", issue=1, issue__mma=1)["core_j"]


@pytest.mark.parametrize(("gpu", "family"), [("h200", "wgmma"), ("b200", "tcgen05")])
def test_shared_memory_reads_limit_narrow_matmuls(gpu, family):
    """On a B200, reading tiles of 128 x 128 at 128 bytes a clock takes as long as multiplying them."""
    card = find_gpu(gpu)
    operations = 2.0 * 128 * 128 * 16
    counts = {"mma__f16": operations, f"{family}__f16": operations, f"{family}__shared_bytes": 2.0 * 128 * 32}
    took = rates(gpu, **counts)
    assert took["shared memory"] == 64.0
    at_boost = card.tensor_fma_per_clk_sm["f16"] * card.tensor_clock_hz / card.boost_clock_hz
    assert took["tensor"] == pytest.approx(operations / 2 / at_boost)


def test_sums_leave_tensor_memory_a_word_a_lane_and_clock():
    assert rates("b200", tensor_memory__load_bytes=128 * 64 * 4)["LSU"] == 64.0


def test_mma_sync_is_slower_than_the_peak_on_hopper():
    gpu = find_gpu("h100")
    assert microarchitecture(gpu).mma_sync_share < 0.7
    per_clock = rates("h100", issue=1, issue__mma=1, mma__bf16=4096)
    per_s = gpu.peak_flops("bf16", tensor=True) / gpu.sms
    assert per_clock["tensor"] / gpu.boost_clock_hz == pytest.approx(
        4096 / per_s / microarchitecture(gpu).mma_sync_share
    )


@pytest.mark.parametrize(("gpu", "clk"), [("a100", 1), ("h100", 1), ("rtx-a4000", 2), ("rtx4090", 2), ("t4", 2)])
def test_memory_instruction_occupies_load_store_units_at_any_width(gpu, clk):
    narrow = rates(gpu, issue=1, issue__ld_shared=1, shared__load_wavefronts=1)
    wide = rates(gpu, issue=1, issue__ld_shared=1, shared__load_wavefronts=4)
    assert narrow["LSU"] == wide["LSU"] == clk
    wavefront_clk = 2 if gpu == "t4" else 1  # Turing moves 64 bytes a clock
    assert wide["shared memory"] == 4 * wavefront_clk
    assert rates(gpu, issue=1, issue__atomic=1, shared__atomic_wavefronts=4)["shared memory"] == 4 * wavefront_clk


def test_lanes_that_add_one_to_the_same_word_take_turns_before_ampere_alone():
    merged = {"issue": 1.0, "issue__atomic": 1.0, "shared__atomic_wavefronts": 1.0, "shared__atomic_repeats": 31.0}
    assert rates("a100", **merged)["shared memory"] == 1.0
    assert rates("t4", **merged)["shared memory"] == 32 * 2.0


def test_pipes_add_up_across_stretches_and_overlap_within_one():
    counts = {"issue": 80.0, "issue__fma32": 64.0, "issue__f64": 16.0}
    apart = rates("rtx3090", **counts, stretch__0__fma32=64.0, stretch__1__f64=16.0)
    mixed = rates("rtx3090", **counts, stretch__0__fma32=64.0, stretch__0__f64=16.0)
    assert apart["in_turn"] == pytest.approx(apart["f64"] + max(apart["fma"], apart["issue"]), rel=0.1)
    assert apart["f64"] <= mixed["in_turn"] <= 1.1 * apart["f64"]
    assert rates("rtx3090", **counts)["in_turn"] == 0.0
    ahead = {"stretch__0__fma32": 64.0, "stretch__1__f64": 16.0, "issue__cp_async": 1.0}
    assert rates("rtx3090", **counts, **ahead)["in_turn"] == 0.0


def test_float_instructions_beside_tensor_instructions_partly_overlap():
    softmax = {"issue": 24.0, "issue__fma32": 16.0, "issue__mufu": 8.0}
    assert rates("a100", **softmax)["between"] == 0
    assert rates("a100", mma__f16=4096, **softmax)["between"] == 16 * 32 / 64 + 8 * 32 / 16
    # Operands are converted before the products, not between them.
    assert rates("a100", issue=8, issue__cvt=8, mma__tf32=4096)["between"] == 0


def test_l1_hits_use_only_l1():
    per_clock = rates("a100", issue=1, issue__ld_global=1, l1__wavefronts=2)
    assert (per_clock["L1"], per_clock["sectors"]) == (2, 0)


def test_l1_delivers_64_bytes_per_clock_and_shares_its_port_with_shared_memory():
    loads = {"issue": 1.0, "issue__ld_global": 1.0, "global__x__read_bytes": 512.0, "global__x__read_passes": 4.0}
    assert rates("a100", **loads)["L1"] == 512 / 64
    assert rates("a100", **loads | {"global__x__read_passes": 16.0})["L1"] == 16
    assert rates("t4", **loads | {"global__x__read_passes": 16.0})["L1"] == 32  # L1 reads 64 bytes a clock
    per_clock = rates("a100", **loads, shared__load_wavefronts=5)
    assert per_clock["port"] == per_clock["L1"] + per_clock["shared memory"] == 8 + 5


def test_asynchronous_copies_reach_shared_memory_once_without_registers():
    copy = {"issue": 1.0, "issue__cp_async": 1.0, "global__x__read_bytes": 512.0, "global__x__read_sectors": 16.0}
    per_clock = rates("a100", **copy, shared__store_wavefronts=4)  # the emulator counts these copies as stores
    assert (per_clock["shared memory"], per_clock["L1"]) == (4, 16 / 2)
    assert per_clock["port"] == per_clock["L1"]


def test_arithmetic_beside_products_of_warpgroups_is_told_from_that_of_warps():
    softmax = {"issue": 8.0, "issue__mufu": 4.0, "issue__mma": 1.0, "mma__f16": 4096.0}
    warps, groups = rates("h200", **softmax), rates("h200", **softmax, wgmma__f16=4096.0)
    assert (warps["between"], warps["between_groups"]) == (groups["between_groups"], groups["between"]) == (8.0, 0.0)


def test_memory_counts_become_events_of_the_power_model():
    counts = {
        "issue.fma32": 3, "shared.load_wavefronts": 4, "shared.store_wavefronts": 1, "global.a.read_sectors": 8,
        "global.c.write_sectors": 2, "global.a.read_requests": 2, "barriers": 1,
    }  # fmt: skip
    assert events(counts) == {"issue.fma32": 3, "shared.wavefronts": 5, "l2.sectors": 10, "l1.requests": 2}


def test_bytes_that_no_thread_moves_cost_what_wavefronts_do():
    counts = {"shared.load_wavefronts": 2.0, "wgmma.shared_bytes": 640.0, "bulk.shared_write_bytes": 256.0}
    assert events(counts)["shared.wavefronts"] == 2.0 + 640.0 / 128 + 256.0 / 128
