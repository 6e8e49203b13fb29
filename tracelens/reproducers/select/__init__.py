"""Which calls of a trace are worth a script."""
