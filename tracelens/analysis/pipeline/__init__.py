"""Pipeline parallelism: micro-batches, stages, messages between them, the bubble."""
