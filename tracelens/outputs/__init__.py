"""Outputs: files and folders that appear whole or not at all, and are never an input of the same command."""

from tracelens.outputs.files import (
    FolderKind,
    cannot_write,
    check_folder,
    is_stream,
    whole_file,
    write_file,
    write_folder,
)
from tracelens.outputs.inputs import Output, check_outputs
from tracelens.read import TraceFiles
