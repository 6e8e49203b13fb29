"""Events of a JSON trace: cut into chunks, decoded into columns, repaired where they are broken."""
