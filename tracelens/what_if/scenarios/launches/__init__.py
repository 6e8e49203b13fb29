"""What the host takes between launches."""
