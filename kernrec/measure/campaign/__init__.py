"""Run measuring campaigns: plan the measurements, schedule them, write them to a journal, and move them to the
database.
"""
