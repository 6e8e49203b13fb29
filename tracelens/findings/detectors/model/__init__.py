"""The rest of the model: the loss, and what is computed twice."""
