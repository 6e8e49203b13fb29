"""Serving: prefill and decode steps of an engine, batches, global steps of all ranks."""
