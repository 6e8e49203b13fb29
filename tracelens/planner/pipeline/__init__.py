"""Pipeline: the idle time of a schedule, by simulation."""
