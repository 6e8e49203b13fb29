"""Devices: what a GPU can do at most, one TOML file each."""
