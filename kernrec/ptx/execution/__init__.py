"""The emulator: basic blocks of many thread blocks at once, and the barriers between them."""
