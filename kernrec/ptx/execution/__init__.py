"""The emulator: schedules the basic blocks of many thread blocks at once, and holds them at barriers."""
