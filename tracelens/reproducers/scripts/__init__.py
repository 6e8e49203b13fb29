"""Scripts: text of a trace enters them as data only."""
