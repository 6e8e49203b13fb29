"""Communication: exposed or slow collectives, and ranks that come late to them."""
