"""What a trace says, worked out a second time from its JSON: standard library only, nothing of tracelens."""
