"""The trace model: one rank (`Trace`) and all ranks of a job (`Run`)."""
