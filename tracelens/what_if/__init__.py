"""What if: the run as a graph, replayed with something changed."""
