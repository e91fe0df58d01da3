"""Measure latency and energy of kernel configs on real GPUs, and on simulated GPUs that replay recordings."""
