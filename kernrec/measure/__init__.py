"""Measure latency and energy of kernel configs on real GPUs, with a protocol that makes the numbers trustworthy.

    request.py             the request for a measuring campaign, its strategies and its result
    collect.py             one campaign on this machine: choose, measure, store, stop
    problems.py            the problems of a campaign, and the configs to measure for each of them
    refine_planner.py      chooser of `--strategy refine`: decides what to measure next
    search_rounds.py       chooser of `--strategy guide` and `--strategy genetic`
    gpu_plan.py            chooser of `--strategy plan`
    doctor.py              diagnosis of what this machine can measure
    campaign/   the main loop, the interface of choosers, the compile queue, the journal, the transfer to the database
    worker/     the process that owns the GPU, and its client, which restarts the process after a crash
    protocol/   measuring one config: correctness, latency, energy, drift, and the probe of the sensors
    device/     CUDA GPUs, and simulated GPUs that replay recordings or fail on demand
    monitor.py  recording of a GPU's sensors while another program runs

A measurement is reported as done only once it is in the journal on disk.
"""
