"""Configure the whole test suite.

Property tests draw the same examples on every machine, and a slow machine fails no test. With
`KERNREC_TEST_PROFILE=deep` (`tools/test.sh --deep`, every night) they draw many new examples, and every case of every
test runs. Without this profile, one in n cases of a test marked `every(n)` runs, and the cases change with the commit.
Tests neither read nor write the databases of the user who runs them.
"""

import gc
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.depth import DEEP
from tests.helpers.paths import ROOT
from tests.helpers.refusals import FILE, Refuses

if TYPE_CHECKING:
    from kernrec.recommender import Recommender
    from kernrec.store import Database

ROTATION = "KERNREC_TEST_ROTATION"
"""Environment variable: a text that selects the cases of `every(n)`, or `all`. The default is the commit."""
HAS_DRIVER = Path("/dev/nvidiactl").exists()
"""True if this machine has an NVIDIA driver, so that all cases of tests marked `gpu` run."""
ALWAYS_SKIPPED = re.compile(
    r"GPU|NVIDIA driver|cudaError|Chromium|playwright|torch|shared.data|superuser|root|win32|Triton is installed",
    re.IGNORECASE,
)
"""Reasons that allow a skip although every package of the extra `ci` is installed."""

# Several threads take three times the CPU time for matrices of a few hundred rows, because they wait for each other.
# NumPy reads these variables on import, in this process and its children.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Count instructions from PTX, so that results do not depend on the compiler's version. Tests of machine code remove the
# variable.
os.environ["KERNREC_COUNTS"] = "ptx"

# Programs and profiles that tests share live as long as the process. Searching for cycles among them every thousand
# objects takes a fifteenth of the time of the kernel tests.
gc.set_threshold(100_000, 20, 100)

# State each setting, because Hypothesis loads another profile by itself if the environment names CI.
ANYWHERE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", max_examples=10, derandomize=True, database=None, print_blob=False, **ANYWHERE)
settings.register_profile("deep", max_examples=1000, derandomize=False, print_blob=True, **ANYWHERE)
settings.load_profile("deep" if DEEP else "same")


def commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


os.environ.setdefault(ROTATION, commit())  # child processes must select the same cases

# A shell that starts the tests in the background makes them and their children ignore interrupts.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def no_database_of_the_user(tmp_path_factory):
    """Provide an empty data folder for this process and its children, without settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("KERNREC_DB", raising=False)
        patch.delenv("KERNREC_STATE", raising=False)
        patch.delenv("KERNREC_CONFIG", raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_database_left(no_database_of_the_user):
    """Fail a test that fills the shared database of its process, because later tests would see the rows."""
    yield
    folder = Path(os.environ["XDG_DATA_HOME"]) / "kernrec"
    left = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    assert not left, f"left in the data folder of all tests: {left}"


@pytest.fixture
def refuses(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Refuses]:
    """Return a function that checks that calls raise the messages in `messages.txt` of the test's folder."""
    yield (seen := Refuses(tmp_path, tmp_path_factory.getbasetemp()))
    seen.compare(request.path.with_name(FILE), f"{request.path.stem}::{request.node.name}")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file from text, bytes or JSON data into the test's folder."""

    def write(content: object, name: str = "results.json") -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.fixture
def database() -> Iterator["Database"]:
    from kernrec.store import Database

    with Database.memory() as database:
        yield database


@pytest.fixture
def read_here() -> Iterator[None]:
    from tests.helpers.reading import reading_here

    with reading_here():
        yield


@pytest.fixture
def measured_here() -> Iterator[None]:
    from tests.helpers.rig import measuring_here

    with measuring_here():
        yield


@pytest.fixture(scope="module")
def compiled_here() -> Iterator[None]:
    """Compile and emulate in this process, except for Triton."""
    from tests.helpers.processors_here import processors_here

    with processors_here():
        yield


@pytest.fixture(scope="session")
def recommender() -> "Recommender":
    from kernrec.recommender import Recommender

    return Recommender([])


@pytest.fixture(scope="session")
def nvrtc() -> str:
    """Return the compiler's name and version. Skip the test if there is none, and name what is missing."""
    from kernrec.compile import NoCompilerError
    from kernrec.compile.nvrtc import compiler

    try:
        return compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-case", action="store_true", help="of every parametrized test, run one case alone")
    parser.addoption(
        "--complete",
        action="store_true",
        help="a test fails that skips although everything is installed: for want of a GPU or a browser it may",
    )


def pytest_report_header() -> str:
    return f"cases of every(n): {'all' if DEEP else f'those of {ROTATION}={os.environ[ROTATION]}'}"


def fail_if_incomplete(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Report a skipped test as a failure under `--complete`, unless the test is skipped on every machine."""
    if not (config.getoption("complete") and report.skipped and isinstance(report.longrepr, tuple)):
        return
    if not ALWAYS_SKIPPED.search(reason := report.longrepr[2]):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} did not run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    fail_if_incomplete(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    fail_if_incomplete(report, collector.config)
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest reads -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that is not `slow` as `fast`. Without the deep profile, skip tests marked `deep`, and choose the
    cases of `every(n)` and `--one-case` by a hash of the test's name and the commit."""
    if not DEEP:
        turns: dict[str, int] = {}  # counts the cases of each test
        every_case = os.environ[ROTATION] == "all"
        left = []
        for item in items:
            name = item.nodeid.partition("[")[0]
            if every := item.get_closest_marker("every"):
                turns[name] = turns.get(name, crc32(f"{name} {os.environ[ROTATION]}".encode())) + 1
            rotates = every and not every_case and not (HAS_DRIVER and item.get_closest_marker("gpu"))
            if item.get_closest_marker("deep") or (rotates and turns[name] % every.args[0]):
                left.append(item)
        config.hook.pytest_deselected(items=left)
        unselected = set(left)
        items[:] = [item for item in items if item not in unselected]
    for item in items:
        if item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.fast)
    if config.getoption("one_case"):
        cases: dict[str, list[pytest.Item]] = {}
        for item in items:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        chosen = {same[crc32(name.encode()) % len(same)] for name, same in cases.items()}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
