"""What to do about a finding, for the device and the framework that the traces show."""

from tracelens.findings.remedies.remedies import (
    Remedy,
    TracePlatform,
    add_remedy,
    entries,
    joined,
    platform_of,
    remedy,
)

__all__ = ["Remedy", "TracePlatform", "add_remedy", "entries", "joined", "platform_of", "remedy"]
