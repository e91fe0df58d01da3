"""Constants of the analytical model that Python needs; `engine/query` defines them and states their sources."""

from kernrec.util.engine import query

LAUNCH_S: float = query.LAUNCH_S
START_S: float = query.START_S
BARRIER_CLK: float = query.BARRIER_CLK
BARRIER_WARP_CLK: float = query.BARRIER_WARP_CLK
SCHEDULERS: float = query.SCHEDULERS
OVERLAP = int(query.OVERLAP)
CLOCKS: int = query.CLOCKS
RESTING: float = query.RESTING
CAPPED: float = query.CAPPED

BLOCKS, CONCURRENT, WARPS, PREFETCH, DRAM_BYTES, DRAM_SLOWDOWN, SERIAL_CLK = range(7)
WAIT_ROUNDS, OVERLAPPED, LONE_WAITS, LOOPS = range(7, 11)
"""Rows of `launch_time.LaunchWork`, in the order of `WorkRow` in engine/query/launch.h."""
TIMES, RESOURCE = 8, 7
"""Number of rows of `launch_time.LaunchTime.rows`. The last row is the index of the bottleneck in `RESOURCES`."""
