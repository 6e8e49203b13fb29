"""The host holds the GPU up: blocking calls, launches, garbage collection, small kernels."""
