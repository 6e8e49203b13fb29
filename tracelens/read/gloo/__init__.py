"""Gloo: collectives of CPU process groups, from the records of its ops."""

from tracelens.read.gloo.gloo import HostEvents, communication
from tracelens.read.gloo.ops import Arguments
from tracelens.read.gloo.records import THREADS_KEY, records

__all__ = ["THREADS_KEY", "Arguments", "HostEvents", "communication", "records"]
