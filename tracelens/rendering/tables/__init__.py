"""Tables as people read them: values with units, rows, cards, entries."""
