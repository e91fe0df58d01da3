"""Run measuring campaigns: plan and schedule measurements, write them to a journal, and move them to the database."""
