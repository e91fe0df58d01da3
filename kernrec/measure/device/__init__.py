"""Provide devices to measure on: CUDA GPUs, replayed recordings and simulated GPUs, all with one interface."""
