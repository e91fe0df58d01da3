"""Train the shipped models of library latencies, for `train_library_model.py`."""
