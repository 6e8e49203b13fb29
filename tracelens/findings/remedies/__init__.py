"""What to do about a finding, for the device and the framework that the traces show."""

from tracelens.findings.remedies.platform import Platform, joined, platform_of
from tracelens.findings.remedies.remedies import Remedy, add_remedy, entries, remedy

__all__ = ["Platform", "Remedy", "add_remedy", "entries", "joined", "platform_of", "remedy"]
