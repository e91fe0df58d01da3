"""Test that changed costs of the reference kernels reveal a change of the GPU."""

from kernrec.measure.campaign.device_session import DriftMonitor, describe_changes
from kernrec.measure.device.interface import GpuSettings


def _errors(*latencies: float) -> list[str | None]:
    drift = DriftMonitor()
    return [drift.update({"compute": {"latency_s": t}, "memory": {"latency_s": 1.0}}) for t in latencies]


def test_two_percent_slower_reference_is_drift_but_half_a_percent_is_not():
    assert _errors(1.0, 1.005, 0.995) == [None, None, None]
    assert _errors(1.0, 1.02)[1] == "reference kernels drifted: compute latency +2.0%"


def test_later_references_are_compared_with_the_drifted_value():
    assert [bool(text) for text in _errors(1.0, 1.02, 1.021, 1.0)] == [False, True, False, True]


def test_different_settings_are_named_with_both_values():
    before, after = GpuSettings(power_limit_w=700.0, ecc=True), GpuSettings(power_limit_w=500.0, ecc=True)
    assert describe_changes(before, after) == "power_limit_w 700 -> 500"
    assert describe_changes(GpuSettings(), before) == "power_limit_w default -> 700, ecc default -> True"
