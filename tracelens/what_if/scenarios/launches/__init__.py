"""The host: its launches, its waits for the GPU, and what keeps it from both."""
