"""Gate: rules that a candidate run must keep against a baseline."""
