"""A client of basedpyright's language server, which shows what an editor shows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SERVER = Path(sys.executable).with_name("basedpyright-langserver")


class Editor:
    """One open Python file; messages are JSON-RPC with a header of their length."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process, self._file, self._number = process, file, 0

    def hover(self, line: int, column: int) -> str:
        """What is shown for the name at a position, both from 0."""
        answer = self._at("textDocument/hover", line, column)
        return "" if answer is None else str(answer["contents"]["value"])

    def completions(self, line: int, column: int) -> set[str]:
        """The names offered at a position."""
        answer = self._at("textDocument/completion", line, column)
        return {item["label"] for item in answer["items"]}

    def _at(self, method: str, line: int, column: int) -> Any:
        position = {"line": line, "character": column}
        return self.ask(method, {"textDocument": {"uri": self._file.as_uri()}, "position": position})

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request; the result, whatever the server sends or asks before it."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._number and "method" not in message:
                return message["result"]
            if "id" in message and "method" in message:
                wanted = message.get("params", {}).get("items", [])
                self.send({"id": message["id"], "result": [None] * len(wanted) if wanted else None})

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while header := self._process.stdout.readline().strip():
            if header.lower().startswith(b"content-length:"):
                size = int(header.split(b":")[1])
        assert size, "the language server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return message


@contextmanager
def editor(file: Path) -> Iterator[Editor]:
    """An editor with this Python file open; its folder may hold a pyrightconfig.json."""
    folder = file.parent.as_uri()
    process = subprocess.Popen([str(SERVER), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        opened = Editor(process, file)
        folders = [{"uri": folder, "name": "script"}]
        opened.ask(
            "initialize",
            {"processId": None, "rootUri": folder, "workspaceFolders": folders, "capabilities": {}},
        )
        opened.send({"method": "initialized", "params": {}})
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": file.read_text()}
        opened.send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        yield opened
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
