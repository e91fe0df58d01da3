"""Measure latency and energy of kernel configs on real GPUs, with a protocol that makes the numbers trustworthy.

    request.py             the request for a campaign, its strategies and its result
    collect.py             one campaign on this machine: choose, measure, store, stop
    problems.py            the problems of a campaign, and their plans on a GPU model
    refine_planner.py, search_rounds.py, gpu_plan.py
                           the choosers of the strategies refine; guide and genetic; plan
    doctor.py              diagnosis of this machine's measuring abilities

    campaign/   the loop, the choosers' interface, code compiled ahead, the journal and the way into the database
    worker/     the process that owns the device, and its client, which restarts the process after a crash
    protocol/   measuring one config: correctness, latency, energy, drift, and the probe of the sensors
    device/     CUDA GPUs, and simulated GPUs that replay recordings or fail on demand
    monitor/    recording a GPU's sensors while another program runs

A measurement is acknowledged when it is in the journal.
"""
