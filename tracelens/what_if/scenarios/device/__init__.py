"""Scenarios of other devices, and of more of them."""
