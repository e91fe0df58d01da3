"""Test that recorded rows are imported only if they belong to the kernel, and that repeated rows are merged."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.bind_rows import as_runs
from kernrec.interop.import_results import ImportSummary, import_results
from kernrec.interop.read_results import read_results
from kernrec.interop.results import MappedColumn, ReadOptions, StatedProblem, ran
from kernrec.kernel import Kernel
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.intake.plausible_times import ceiling_s, floor_s, implausible
from tests.helpers.foreign_files import cache, document, entry, result
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside

BX = {"tune_params_keys": ["bx", "tile"]}


@pytest.fixture
def kernel(tmp_path):
    return written_kernel(tmp_path, beside(__file__, "bind.cu"), beside(__file__, "bind.toml"))


def bind(database: Database, kernel: Kernel, path: Path, **inputs: Any):  # type: ignore[no-untyped-def]
    return import_results(database, path, kernel.definition.problem(), kernel=kernel, **inputs)


def test_imported_rows_have_the_kernel_hash_and_name_who_recorded_them(database, kernel, write):
    done = bind(database, kernel, write(cache(entry(), entry(bx=64, time=0.4))), recorder="a paper")
    assert (done.kernels[0].kernel, done.results, done.added) == ("scale", 2, 2)
    rows = database.rows("measurement")
    assert {row["kernel_hash"] for row in rows} == {kernel.hash}
    assert {row["measured_by"] for row in rows} == {"Kernel Tuner, a paper"}
    assert {row["protocol_version"] for row in rows} == {0}
    ((name, spec, source, _),) = database.kernels()
    assert (name, source) == ("scale", kernel.source)
    assert json.loads(spec)["name"] == "scale"
    assert database.altered() == []
    assert bind(database, kernel, write(cache(entry(), entry(bx=64, time=0.4))), recorder="a paper").added == 0


def test_tunables_match_in_any_case_and_fixed_macros_must_equal_the_source(database, kernel, write):
    rows = [result(configuration={"BX": 32 * n, "Tile": 1, "width": 4}) for n in (1, 2)]
    path = write(document(*rows))
    assert bind(database, kernel, path, gpu="rtx3090").results == 2
    assert {row["tunables"] for row in database.rows("config")} == {'{"bx":32,"tile":1}', '{"bx":64,"tile":1}'}
    other = write(document(result(configuration={"bx": 32, "tile": 1, "WIDTH": 8})))
    with pytest.raises(UsageError, match="result 1 has WIDTH=8, but scale defines it as 4"):
        bind(database, kernel, other, gpu="rtx3090")


def test_csv_rows_are_imported_by_column_name(database, kernel, write):
    rows = ("32,1,0.5,100,ok,RTX 3090,9", "64,2,,,crash,RTX 3090,9", "128,1,,,none,,")
    text = "\n".join(("BX,tile,time_ms,energy_mJ,outcome,gpu,runs", *rows))
    done = bind(database, kernel, write(text, "rows.csv"), ignored=("runs",))
    assert (done.gpu.name, done.kernels[0].outcomes) == ("rtx3090", {"ok": 1, "crash": 1})
    assert done.notes == ("1 configs without a result were skipped",)
    (good,) = [row for row in database.rows("measurement") if row["outcome"] == "ok"]
    assert good["latency_s"] == pytest.approx(0.5e-3)
    assert good["energy_j"] == pytest.approx(0.1)
    assert good["power_w"] == pytest.approx(200.0)


@pytest.mark.parametrize("names", ["device,gpu", "gpu,device"])
def test_gpu_column_without_a_gpu_name_is_skipped_in_any_column_order(database, kernel, write, names):
    values = {"device": "RTX 3090", "gpu": "0"}
    row = ",".join(values[name] for name in names.split(","))
    done = bind(database, kernel, write(f"bx,tile,time_ms,{names}\n32,1,0.5,{row}\n", "rows.csv"))
    assert done.gpu.name == "rtx3090"


WRONG = {
    "an unknown tunable": (cache(entry(bz=1), tune_params_keys=["bx", "tile", "bz"]), "unknown tunable of scale 'bz'"),
    "a value outside": (cache(entry(bx=48)), "bx is 48; scale accepts 32, 64, 128, 256"),
    "a config that the spec excludes": (cache(entry(bx=256, tile=2)), "on rtx3090 .constraint 'bx \\* tile <= 256'"),
    "a missing tunable": (cache(entry(), tune_params_keys=["bx"]), "the rows have no value of tile"),
    "a time below the floor": (cache(entry(time=0.01, times=[0.01])), "1 of 1 times are below .* wrong unit"),
    "seconds for milliseconds": (cache(entry(time=9e7, times=[9e7])), "the time of a single thread for"),
    "another kernel's shared memory": (cache(entry(smem_bytes=4096)), "4096 bytes .* scale.cu uses 128"),
    "another kernel's registers": (cache(entry(num_regs=128)), "registers differ by .* not the measured source"),
    "a fractional value": (cache(entry(bx=32.5)), "bx is 32.5"),
    "a fraction of a register": (cache(entry(num_regs=12.5)), "num_regs is 12.5"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_rows_of_another_kernel_are_refused_and_not_stored(database, kernel, write, content, message):
    path = write(content)
    with pytest.raises(UsageError, match=message) as caught:
        bind(database, kernel, path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert set(database.counts().values()) == {0}


TABLES = {
    "no unit": ("bx,tile,time\n32,1,5\n", "column time has no unit; give --map 'latency_s=time"),
    "no time": ("bx,tile\n32,1\n", "no column is a time"),
    "two times": ("bx,tile,time_ms,latency_s\n32,1,5,5\n", "several columns are times"),
    "two energies": ("bx,tile,time_ms,energy_mj,energy_j\n32,1,.5,100,.05\n", "mj and energy_j state .* --map ignore="),
    "an unknown column": ("bx,tlie,time_ms\n32,1,5\n", "column 'tlie' is neither a tunable .* did you mean tile\\?"),
    "joules that are watts": ("bx,tile,time_ms,energy_j\n32,1,0.5,300\n", "6e\\+05 W, which no GPU draws"),
    "a line too short": ("bx,tile,time_ms\n32,1\n", "line 2 has 2 values for 3 columns"),
    "words for numbers": ("bx,tile,time_ms\n32,1,fast\n", "time_ms is 'fast', not a number"),
    "an unknown outcome": ("bx,tile,time_ms,outcome\n32,1,5,dunno\n", "'dunno' is neither a time nor a known error"),
    "two devices": ("bx,tile,time_ms,gpu\n32,1,5,T4\n64,1,5,L4\n", "rows of 2 devices"),
    "a column twice": ("bx,BX,tile,time_ms\n32,32,1,5\n", "names a column twice"),
    "nothing": ("", "is not a table"),
}


@pytest.mark.parametrize(("text", "mapped"), [
    ("latency_s=time (ms)*1e-3", MappedColumn("latency_s", "time (ms)", 1e-3)),
    ("block_x = bx", MappedColumn("block_x", "bx")), ("latency_s=us / 1e6", MappedColumn("latency_s", "us", 1e-6)),
    ("a=b*c", MappedColumn("a", "b*c")),
])  # fmt: skip
def test_map_option_is_parsed_as_column_and_factor(text, mapped):
    assert MappedColumn.parse(text) == mapped


def test_mapped_columns_are_imported_in_si_units(database, kernel, write):
    path = write("block,t,time (us)\n32,1,500\n64,2,250\n", "rows.csv")
    mapped = [MappedColumn.parse(text) for text in ("latency_s=time (us)*1e-6", "bx=block", "tile=t")]
    import_results(database, path, StatedProblem(), "rtx3090", kernel, mapped=tuple(mapped))
    times = sorted((dict(m.config)["bx"], m.latency_s) for m in database.measurements())
    assert times == [(32, pytest.approx(5e-4)), (64, pytest.approx(2.5e-4))]


@pytest.mark.parametrize(("text", "message"), TABLES.values(), ids=TABLES)
def test_unreadable_table_error_is_one_line(database, kernel, write, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        bind(database, kernel, write(text, "rows.csv"), gpu="rtx3090")
    assert "\n" not in str(caught.value)
    assert set(database.counts().values()) == {0}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.lists(st.sampled_from(["bx", "TILE", "time_ms", "outcome", "energy_j", "x", "", "bx"]), max_size=5),
    lines=st.lists(
        st.lists(st.sampled_from(["32", "1", "0.5", "nan", "-1", "1e999", "ok", "", '"', "é\x00"]), max_size=5)
    ),
)
def test_any_damaged_table_is_refused_in_one_line(write, header, lines):
    message = ""
    try:
        file = read_results(
            write("\n".join(",".join(cells) for cells in [header, *lines]), "rows.csv"), ReadOptions(("bx", "tile"))
        )
        assert all(result.latency_s is None or result.latency_s > 0 for result in file.results)
    except UsageError as error:
        message = str(error)
    assert "\n" not in message


def test_oversized_parquet_file_is_refused(database, kernel, tmp_path):
    """Parquet stores three million equal rows in a few kilobytes, so the limit must be on rows."""
    path = tmp_path / "rows.parquet"
    query = "SELECT 32 AS bx, 2 AS tile, 512.0 AS runtime_us FROM range(3000000)"
    duckdb.connect().execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    assert path.stat().st_size < 100_000
    with pytest.raises(UsageError, match=r"3000000 rows.*not read"):
        bind(database, kernel, path, gpu="rtx3090")


def test_failed_config_that_the_spec_excludes_is_skipped_and_reported(database, kernel, write):
    path = write(cache(entry(), entry(bx=256, tile=2, time="RuntimeFailedConfig")))
    done = bind(database, kernel, path)
    assert done.results == 1
    assert done.notes == ("skipped 1 failure: scale excludes these configs",)


@pytest.mark.parametrize("gpu", ["t4", "a100", "rtx4090", "h200"])
def test_plausible_times_pass_the_plausibility_check(gpu):
    """Measured times at half and at a thousandth of the peak must count as plausible."""
    card = find_gpu(gpu)
    product, rows = find_op("matmul").problem("f16", m=4096, n=4096, k=4096), find_op("softmax")
    for problem in (product, rows.problem(rows=8192, columns=8192)):
        best = max(problem.flops / card.peak_flops("f16", tensor=True), problem.bytes / card.memory_bandwidth)
        assert floor_s(problem, card) < best
        assert implausible([2 * best, 1000 * best], problem, card) is None
        ceiling = ceiling_s(problem)
        assert ceiling is not None
        assert ceiling > 1000 * best


ROWS = beside(__file__, "rows.csv")


def imported(kernel: Kernel, path: Path, **recording: object) -> tuple[ImportSummary, list[float]]:
    with Database.memory() as database:
        problem = kernel.definition.problem()
        done = import_results(database, path, problem, "rtx3090", kernel, **recording)  # type: ignore[arg-type]
        times = [row["latency_s"] for row in database.rows("measurement") if row["latency_s"] is not None]
        return done, sorted(float(str(time)) for time in times)


def test_median_of_repeated_rows_is_stored(kernel, write):
    done, times = imported(kernel, write(ROWS, "rows.csv"), ignored=("padding",))
    assert times == pytest.approx([0.3e-3, 0.3e-3, 0.4e-3])
    assert (done.results, sum(done.kernels[0].outcomes.values()) - done.kernels[0].outcomes["ok"]) == (4, 1)
    note = "3 rows repeated a config, up to a factor of 2.50 apart in time; the median of each config was kept"
    assert note in done.notes


def test_rows_that_differ_in_an_ignored_column_are_not_averaged(database, kernel, write):
    text = "bx,tile,warmth,time_ms,energy_j,power_w\n32,1,0,1,.1,100\n32,1,1,3,.3,200\n"
    bind(database, kernel, write(text, "rows.csv"), gpu="rtx3090", ignored=("warmth",))
    (row,) = database.rows("measurement")
    assert (row["latency_s"], row["energy_j"], row["power_w"]) == pytest.approx((1e-3, 0.1, 100.0))
    assert (row["latency_samples_s"], row["latency_mad_s"], row["latency_high_s"]) == (None, None, None)


def test_energy_of_merged_runs_is_power_times_median_latency():
    first, second = (ran({}, time, {"energy": 100.0 * time}) for time in (1e-3, 3e-3))
    (run,) = as_runs([first, second])
    assert (run.latency_s, run.energy_j, run.power_w) == pytest.approx((2e-3, 0.2, 100.0))
    assert run.samples_s == (1e-3, 3e-3)


def test_all_unknown_columns_are_named(kernel, write):
    rows = ROWS.replace("padding", "padding,swizzle,warmth").replace("ok", "1,2,ok")
    with pytest.raises(UsageError) as raised:
        imported(kernel, write(rows, "rows.csv"))
    assert "columns 'padding', 'swizzle', 'warmth' are neither" in str(raised.value)
    assert "--map ignore=padding,swizzle,warmth leaves them out" in str(raised.value)
