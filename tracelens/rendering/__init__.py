"""Report in, bytes out: one format a module, which knows nothing but tables."""
