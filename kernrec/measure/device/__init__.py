"""Devices: CUDA, replayed and simulated ones behind one interface."""
