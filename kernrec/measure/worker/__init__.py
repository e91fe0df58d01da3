"""Run the process that owns the device, and its client."""
