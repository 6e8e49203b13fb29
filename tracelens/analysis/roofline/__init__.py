"""Roofline: what each op call must do, how fast the device could do it, and how fast it was."""
