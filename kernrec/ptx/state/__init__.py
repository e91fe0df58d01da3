"""What a running kernel holds: registers of the lanes, memories, and what their use costs."""
