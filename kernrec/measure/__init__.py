"""Measuring latency and energy of kernel configs on real GPUs, so that the numbers can be trusted.

    request.py             what a campaign is asked for, its strategies and its result
    collect.py             one campaign on this machine: what next, measure, store, enough?
    problems.py            the problems of a campaign, and their plans on a kind of GPU
    refine_planner.py, search_rounds.py, card_plan.py
                           the choosers of the strategies refine; guide and genetic; plan
    doctor.py              what this machine can measure

    campaign/   the loop, the choosers' interface, code compiled ahead, the journal and the way into the database
    worker/     the process that owns the device and may die, and its client
    protocol/   how one config is measured: correctness, latency, energy, drift, and the probe of the sensors
    device/     CUDA cards, and simulated cards that replay recordings or fail on demand
    monitor/    recording a GPU's sensors while another program runs

A measurement is acknowledged when it is in the journal.
"""
