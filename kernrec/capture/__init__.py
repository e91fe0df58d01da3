"""Run CUDA programs without a GPU, and record their launches as call files.

`native/` contains replacements for the CUDA runtime library and the CUDA driver library. A program loads them instead
of NVIDIA's. They send launches through a socket to a `Session`, which runs them in the emulator.
"""
