"""Train the shipped models of backends' latencies and powers, for `train_library_model.py`."""
