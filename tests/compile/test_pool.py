"""Test parallel compilation when worker processes die, hang or are interrupted."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kernrec.compile import CompileError, CompileJob, compile_many, compile_source
from kernrec.compile.pool import CompilingProcesses, processors_of
from tests.helpers.command import environment, is_alive


def workers():
    started = ("SpawnProcess", "ForkProcess")
    return [child for child in multiprocessing.active_children() if type(child).__name__ in started]


def test_every_job_returns_once_with_its_own_result(nvrtc, cache, saxpy):
    jobs = [CompileJob(saxpy, sm, {"SCALE": scale}) for sm in (75, 80) for scale in (2, 3, 4)]
    jobs.append(CompileJob(saxpy, 80, name="bad.cu"))
    results = dict(compile_many(jobs, processes=2, cache=cache))
    assert set(results) == set(jobs)
    bad = results.pop(jobs[-1])
    assert isinstance(bad, CompileError)
    assert str(bad).startswith("bad.cu:4: ")
    for job, compiled in results.items():
        assert compiled == compile_source(job.source, job.sm, job.defines, cache=cache)
    assert not workers()


@pytest.mark.every(3)
@pytest.mark.slow
def test_exponential_macros_stop_at_the_limit(nvrtc, cache):
    """Ten one-line macros expand to 10^9 terms, which would exhaust time and memory."""
    macros = ["#define M0(x) x", *(f"#define M{i}(x) {' + '.join([f'M{i - 1}(x)'] * 10)}" for i in range(1, 10))]
    source = "\n".join([*macros, 'extern "C" __global__ void k(float* a) { a[0] = M9(a[1]); }'])
    assert len(source) < 1500
    ((_, error),) = compile_many([CompileJob(source, 80, name="bomb.cu")], processes=1, timeout_s=2.0, cache=cache)
    assert isinstance(error, CompileError)
    assert error.reason in ("timeout", "crash")
    assert "\n" not in str(error)
    assert not workers()


def test_killed_worker_fails_only_one_job(nvrtc, cache, saxpy, slow):
    endless = CompileJob(slow, 80, name="slow.cu")

    def jobs():
        yield CompileJob(saxpy, 80, {"SCALE": 0})
        # The only worker has finished a job, so it is running. It gets the endless job next.
        (worker,) = workers()
        threading.Timer(1.0, os.kill, (worker.pid, signal.SIGKILL)).start()
        yield endless
        yield CompileJob(saxpy, 80, {"SCALE": 1})

    results = dict(compile_many(jobs(), processes=1, timeout_s=600, cache=cache))
    error = results.pop(endless)
    assert isinstance(error, CompileError)
    assert error.reason == "crash"
    assert str(error) == "slow.cu: the compiling process died (signal 9)"
    assert len(results) == 2
    assert all(compiled.cubin for compiled in results.values())


def test_processes_compile_several_batches_and_end_when_closed(nvrtc, cache, saxpy):
    compiling = CompilingProcesses(2)
    first, second, third = ([CompileJob(saxpy, 80, {"SCALE": scale + n}) for n in range(3)] for scale in (0, 10, 20))
    assert len(dict(compiling.compile(first, cache=cache))) == 3
    started = workers()
    assert set(dict(compiling.compile(second, cache=cache))) == set(second)
    assert workers() == started
    left = compiling.compile(third, cache=cache)
    next(left)
    left.close()  # close the pool while the other worker still compiles
    assert len(workers()) < len(started)
    results = dict(compiling.compile(third, cache=cache))
    assert all(results[job] == compile_source(job.source, job.sm, job.defines, cache=cache) for job in third)
    compiling.close()
    assert not workers()


INTERRUPTED = """
import sys
from kernrec.compile import CompileCache, CompileJob, compile_many
if __name__ == "__main__":
    try:
        jobs = [CompileJob(sys.stdin.read(), 80), CompileJob("", 80)]
        for _ in compile_many(jobs, processes=2, cache=CompileCache(None)):
            print("going", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal to a process group")
def test_interrupt_stops_all_processes_silently(nvrtc, tmp_path, slow):
    script = tmp_path / "batch.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )
    process.stdin.write(slow)
    process.stdin.close()
    process.stdin = None
    assert process.stdout.readline() == "going\n"
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the parent and all workers
    output, errors = process.communicate(timeout=300)
    assert (output, errors, process.returncode) == ("stopped\n", "", 0)
    deadline = time.monotonic() + 300
    while is_alive(-process.pid):
        assert time.monotonic() < deadline, "a compiling process outlived its parent"
        time.sleep(0.05)


LOST = """
import multiprocessing, sys, threading, time
from kernrec.compile import CompileCache, CompileJob
from kernrec.compile.pool import processors_of
if __name__ == "__main__":
    if sys.argv[1] == "SpawnProcess":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    with processors_of(2) as processors:
        for _ in range(2):
            next(processors.compile([CompileJob("", 80)]))
            tasks = [processors.submit(time.sleep, 600.0) for _ in range(2)]
        while len(multiprocessing.active_children()) < 3:
            time.sleep(0.01)
        print(*{type(child).__name__ for child in multiprocessing.active_children()}, flush=True)
        tasks[0].result()
"""


@pytest.mark.every(2)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is forked")
@pytest.mark.parametrize("kind", ["ForkProcess", "SpawnProcess"])
def test_killed_main_process_ends_its_worker_processes(nvrtc, tmp_path, kind):
    (script := tmp_path / "lost.py").write_text(LOST)
    settings = environment() | {"KERNREC_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(script), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=settings)
    assert kind in process.stdout.readline().split()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 300
    while is_alive(-process.pid):
        assert time.monotonic() < deadline, "a process outlived its parent"
        time.sleep(0.05)


def test_error_is_raised_without_waiting_for_endless_tasks():
    processes = []

    def work():
        with processors_of(1) as processors:
            tasks = [processors.submit(time.sleep, seconds) for seconds in (-1.0, 600.0, 600.0)]
            processes.extend(processors._pool._processes.values())
            tasks[0].result()

    with pytest.raises(ValueError, match="non-negative"):
        work()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL]
    assert not workers()
