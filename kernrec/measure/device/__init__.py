"""Provide devices to measure on: CUDA GPUs and simulated GPUs, all with one interface."""
