"""Tables: declared columns with units, results, and the operations on them."""
