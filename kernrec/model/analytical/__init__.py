"""Analytical model: predict a launch's time, power and memory traffic on a GPU without measurements."""
