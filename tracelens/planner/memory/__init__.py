"""Memory: bytes a GPU, by component and pipeline rank, of a model and a layout."""
