"""Bytes to `Trace`: files, archives and URLs, JSON that may be broken, and the formats it holds."""
