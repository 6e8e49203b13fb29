"""What an op call costs: FLOPs and bytes from its recorded arguments."""
