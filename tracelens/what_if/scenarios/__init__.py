"""The scenarios, registered by being imported; see `whatif.scenario`."""
