"""The graph of a run: GPU work, host calls, messages, and what each of them waits for."""
