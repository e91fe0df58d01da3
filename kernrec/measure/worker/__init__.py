"""Run the worker process, which owns the device, and the client that talks to it."""
