"""The analytical model: time, power and memory traffic of a launch on a GPU without measurements."""
