"""The process that owns the device, and its client."""
