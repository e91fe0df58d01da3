"""The analytic model: time, power and memory traffic of a launch on a GPU that nobody measured."""
