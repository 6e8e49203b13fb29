"""Communication: collectives matched across ranks, clocks, waiting against transfer, overlap."""
