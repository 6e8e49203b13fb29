"""The scenarios, registered on import; see `what_if.scenario`."""
