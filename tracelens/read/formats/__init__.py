"""Trace formats: one module each, found by looking at the content. Exports what a format is made with."""

from tracelens.read.build import Dialect, build
from tracelens.read.json import Encoded, Splitter
from tracelens.read.parser import parser

__all__ = ["Dialect", "Encoded", "Splitter", "build", "parser"]
