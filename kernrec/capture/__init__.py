"""Run CUDA programs without a GPU, and record their launches as call files.

`native/` contains replacements for NVIDIA's CUDA runtime and driver libraries, which the program loads. They send
launches through a socket to a `Session`, which runs them in the emulator.
"""
