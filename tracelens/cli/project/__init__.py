"""`tracelens project`: memory, pipeline and what-if projections."""
