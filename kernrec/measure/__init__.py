"""Measuring latency and energy of kernel configs on real GPUs, so that the numbers can be trusted.

    campaign/   which configs to measure and in which order, compiled before they are needed; every measurement is
                written to a journal at once, and then to the database
    worker/     the process that owns the device and may die, and its client
    protocol/   how one config is measured: correctness, latency, energy, drift, and the probe of the sensors
    device/     CUDA cards, and simulated cards that replay recordings or fail on demand
    monitor/    recording a GPU's sensors while another program runs

    collect.py             runs a campaign on each device
    problem_selection.py   the problems that a user names
    doctor.py              what this machine can measure

A measurement is acknowledged when it is in the journal.
"""
