"""Measuring latency and energy of kernel configs on real GPUs, so that the numbers can be trusted.

    probe.py, protocol.py      the protocol, device-agnostic; statistics.py, counter.py, correctness.py: its arithmetic
    device.py                  what it needs of a device: cuda.py (with nvml.py), replay.py, faulty.py
    worker.py, child.py        the process that owns the device and may die, and the one that talks to it
    journal.py, ingest.py      what was measured is on disk at once, and in the database soon
    plan.py, campaign.py       which configs, in which order, how thoroughly

A measurement is acknowledged when it is in the journal.
"""
