"""CUDA programs that run without a GPU: their calls go to kernrec, and their launches become calls as files.

`native/` has stand-ins for the CUDA runtime library and the CUDA driver library. A program loads them in place of
NVIDIA's, and they send launches through a socket to a `Session`, which runs them in the emulator.
"""
