"""Replaying the graph: new times, the critical path, and how well the recorded run is met."""
