"""Emulated NVML for one GPU. A file holds its state, which therefore outlives processes as on a real GPU."""

import json
import os
from pathlib import Path


class NVMLError(Exception):
    pass


class NVMLError_NoPermission(NVMLError):  # noqa: N801, N818 - NVML's name
    pass


def _state():
    return json.loads(Path(os.environ["EMULATED_CARD"]).read_text())


def _change(**changed):
    state = _state()
    if not state["administrator"]:
        raise NVMLError_NoPermission("Insufficient Permissions")
    path = Path(os.environ["EMULATED_CARD"])
    path.with_suffix(".new").write_text(json.dumps(state | changed))
    path.with_suffix(".new").replace(path)


def nvmlInit():  # noqa: N802
    pass


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    return uuid


def nvmlDeviceGetPowerManagementLimitConstraints(handle):  # noqa: N802
    return [200_000, 700_000]


def nvmlDeviceGetPowerManagementLimit(handle):  # noqa: N802
    return _state()["limit"]


def nvmlDeviceSetPowerManagementLimit(handle, milliwatts):  # noqa: N802
    _change(limit=milliwatts)


def nvmlDeviceGetSupportedMemoryClocks(handle):  # noqa: N802
    return [3201, 1593]


def nvmlDeviceGetSupportedGraphicsClocks(handle, memory):  # noqa: N802
    return list(range(345, 1981, 15)) if memory == 3201 else [345]


def nvmlDeviceSetGpuLockedClocks(handle, low, high):  # noqa: N802
    _change(locked=[low, high])


def nvmlDeviceResetGpuLockedClocks(handle):  # noqa: N802
    _change(locked=None)
