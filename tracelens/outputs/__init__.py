"""Outputs: files and folders that appear whole or not at all, and are never an input of the same command."""

from tracelens.outputs.files import whole_file, write_file
from tracelens.outputs.folders import FolderKind, check_folder, write_folder

__all__ = ["FolderKind", "check_folder", "whole_file", "write_file", "write_folder"]
