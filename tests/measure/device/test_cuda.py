"""Test the real CUDA device with kernels of known time and result. These tests need a GPU."""

import pytest

from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.measure.device.interface import ConfigUnderTest, MeasurementFailure, PreparedProblem
from kernrec.measure.protocol.measure_config import Probe, measure_config
from kernrec.op import Problem, find_op
from kernrec.store.measurement import Tier

pytestmark = pytest.mark.gpu

PROBLEM = find_op("matmul").problem(m=512, n=512, k=512)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    from kernrec.measure.device.nvml import local_gpus

    try:
        card = local_gpus()[0]
    except KernrecError as error:
        pytest.skip(str(error))
    from kernrec.measure.device.cuda import CudaDevice

    return CudaDevice(card.uuid, tmp_path_factory.mktemp("scratch"))


def subject(device, problem: Problem = PROBLEM, row: int = 0) -> ConfigUnderTest:
    kernel = find_kernel("matmul_simt")
    gpu = find_gpu(device.info.gpu)
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    return ConfigUnderTest(kernel.name, space.config(int(space.at(problem).rows[row])), problem, kernel)


def _waiting(device, nanoseconds: int):
    import ctypes

    from kernrec.measure.device.launch import ConfigLaunches, DeviceLaunch, LoadedCudaConfig

    launch = DeviceLaunch(device._helpers, "wait", (1, 1, 1), (1, 1, 1), 0, [ctypes.c_uint32(nanoseconds)])
    return LoadedCudaConfig(device._tools, ConfigLaunches([[launch]], 4))


@pytest.mark.parametrize("seconds", [1e-3, 2e-4])
def test_measured_time_equals_the_known_kernel_duration(device, seconds):
    times = _waiting(device, int(seconds * 1e9)).times(10)
    assert sorted(times)[5] == pytest.approx(seconds, rel=0.03, abs=4e-6)


def test_consecutive_launches_have_no_host_gap(device):
    assert _waiting(device, 20_000).back_to_back(100) == pytest.approx(20e-6, abs=4e-6)


def test_copy_reaches_most_of_the_bandwidth_but_never_more(device):
    reference = device.references()["memory"]
    seconds = sorted(reference.times(10))[5]
    share = reference.footprint_bytes / seconds / find_gpu(device.info.gpu).memory_bandwidth
    assert 0.5 < share <= 1.02


def test_library_kernel_is_correct_and_has_a_latency(device):
    device.prepare(PreparedProblem(PROBLEM))
    report = measure_config(device, subject(device), Tier.SCREEN, None, Probe())
    assert 1e-6 < report.latency_s < 1e-2
    assert 0.0 < report.numeric_error < report.tolerance
    assert report.sm_clock_mean_hz > 2e8


def test_wrong_kernel_is_incorrect(device):
    device.prepare(PreparedProblem(PROBLEM))
    device._buffers.expect({name: array.get() * 1.01 for name, array in device._buffers._expected.items()})
    with pytest.raises(MeasurementFailure, match="at most") as caught:
        measure_config(device, subject(device), Tier.SCREEN, None, Probe())
    assert caught.value.outcome == "incorrect"
    device.prepare(PreparedProblem(PROBLEM))


def test_oversized_launch_is_refused_and_the_device_stays_usable(device):
    import ctypes

    from kernrec.measure.device.launch import DeviceLaunch

    with pytest.raises(MeasurementFailure) as caught:
        DeviceLaunch(device._helpers, "wait", (1, 1, 1), (2048, 1, 1), 0, [ctypes.c_uint32(1)]).queue(
            device._tools.stream
        )
    assert caught.value.outcome == "constraint"
    assert _waiting(device, 100_000).times(1)[0] > 5e-5


def test_energy_is_power_times_time_and_plausible(device):
    from kernrec.measure.protocol.probe import probe_sensors

    probe = probe_sensors(device)
    if not probe.measures_energy:
        pytest.skip(probe.why_no_energy() or "")
    problem = find_op("matmul").problem(m=4096, n=4096, k=4096)
    device.prepare(PreparedProblem(problem))
    report = measure_config(device, subject(device, problem), Tier.COARSE, None, probe)
    gpu = find_gpu(device.info.gpu)
    assert report.energy_j == pytest.approx(report.power_w * report.sustained_latency_s)
    assert probe.idle_w < report.power_w < 1.1 * gpu.power_max_w


def test_measurement_worker_restarts_after_its_process_is_killed(device, tmp_path):
    from kernrec.measure.device.nvml import local_gpus
    from kernrec.measure.worker.worker_client import WorkerClient

    client = WorkerClient({"device": "cuda", "uuid": local_gpus()[0].uuid, "scratch": str(tmp_path)})
    try:
        first = client.request(60.0, "references", energy=False, probe={})["references"]
        client._process.kill()  # type: ignore[union-attr]
        again = client.request(60.0, "references", energy=False, probe={})["references"]
    finally:
        client.stop()
    assert again["memory"]["latency_s"] == pytest.approx(first["memory"]["latency_s"], rel=0.05)
