"""Measuring latency and energy of kernel configs on real GPUs, so that the numbers can be trusted.

    protocol.py, probe.py      the protocol, whatever the device (boot.py keeps what the probe found); its arithmetic:
                               statistics.py, counter.py, correctness.py, racing.py, drift.py
    device.py                  what it needs of a device: cuda.py (with nvml.py, code.py, memory.py, launcher.py,
                               loaded.py), and on a clock of their own (simulated.py) replay.py and faulty.py
    worker.py, child.py        the process that owns the device and may die, and the end that talks to it
    journal.py, ingest.py      what was measured is on disk at once, and in the database soon
    plan.py, ahead.py          which configs, in which order, compiled before they are needed
    campaign.py, results.py    one device's campaign; collect.py runs one on each, doctor.py says what is possible
    monitor.py, trace.py       a GPU watched while something else runs, and what was recorded of one

A measurement is acknowledged when it is in the journal.
"""
