"""Files that are somewhere else: s3://, gs://, hf://, https:// and whatever else fsspec has a driver for.

fsspec is optional and imported for URLs only; local files never pass through it.
"""

from __future__ import annotations

import re
import sys
from io import BufferedReader, RawIOBase
from typing import IO, Any, NamedTuple, cast

from tracelens.errors import MissingExtra, ParseError

# Two letters at least: one letter before the colon is a drive. `simplecache::s3://...` chains drivers.
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://")
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")

_BUFFER = 1 << 18
_SILENCE_S = 60

# Drivers raise errors of their own libraries besides OSError and ValueError. A library that is not loaded
# cannot have raised anything.
_DRIVER_ERRORS = (
    ("aiohttp", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("httpx", "HTTPError"),
    ("httpx2", "HTTPError"),
    ("paramiko", "SSHException"),
)


class Listing(NamedTuple):
    """What a directory holds or a pattern matches.

    Attributes:
        pattern: whether it was a pattern.
        files: each as it can be opened.
        folders: the same.
    """

    pattern: bool
    files: list[str]
    folders: list[str]


def is_url(path: str) -> bool:
    """Whether a path names a protocol; `C:/traces` does not."""
    return bool(_URL.match(path))


def shown_url(url: str) -> str:
    """A web address as reports may show it: without the password or the signature it may carry."""
    if not _HTTP.match(url):
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def list_url(url: str, suffixes: tuple[str, ...]) -> Listing | None:
    """What is in a remote directory, or matches a pattern; None for a file.

    Args:
        url: what ends with `/` is a directory.
        suffixes: what ends with one of these is a file, without a request to find out.

    Raises:
        ParseError: the driver is missing, or fails.
    """
    web = bool(_HTTP.match(url))  # there a ? begins the query, and [ an IPv6 address
    name = url.partition("?")[0] if web else url
    pattern = bool("*" in name if web else _MAGIC.search(name))
    # A web server has no directories; to ask whether it lists a page would download the file.
    if not pattern and not name.endswith("/") and (web or name.lower().endswith(suffixes)):
        return None
    if not web and not name.endswith("://"):
        url = url.rstrip("/")
    system, path = _connect(url)
    try:
        if pattern:
            entries = list(system.glob(path, detail=True).values())
        elif system.isdir(path):
            entries = system.ls(path, detail=True)
        else:
            return None
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be listed ({_reason(error)})") from None

    def urls(kind: str) -> list[str]:
        return [_url_of(system, entry["name"], path, url) for entry in entries if entry["type"] == kind]

    return Listing(pattern, urls("file"), urls("directory"))


def open_url(url: str) -> IO[bytes]:
    """A stream of a remote file; it holds a few blocks of it at a time, never all of it.

    Raises:
        ParseError: the driver is missing, or fails.
        FileNotFoundError: no such file.
        IsADirectoryError: it is a directory.
    """
    system, path = _connect(url)
    # One request from start to end. With a size fsspec does not send another one ahead to ask for it, which
    # servers of signed addresses refuse.
    options = {"block_size": 0, "size": 1} if _HTTP.match(url) else {}
    try:
        file = system.open(path, "rb", **options)
    except (FileNotFoundError, IsADirectoryError):
        raise
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be opened ({_reason(error)})") from None
    return cast(IO[bytes], BufferedReader(_Raw(file, seekable=not options), _BUFFER))


class _Raw(RawIOBase):
    """A file of fsspec as the standard library knows files; all of its errors are OSErrors."""

    def __init__(self, file: Any, *, seekable: bool) -> None:
        self._file = file
        self._seekable = seekable

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except _failures() as error:
            raise OSError(_reason(error)) from None
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _connect(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path there."""
    protocol = url.partition(":")[0]
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{shown_url(url)}: reading {protocol}:// addresses", "remote") from error
    try:
        options = _web_options(url) if _HTTP.match(url) else {}
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        problem = f"reading {protocol}:// addresses needs a library that is not installed"
        raise ParseError(shown_url(url), f"{problem} ({_reason(error)})") from None
    except _failures() as error:
        raise ParseError(shown_url(url), f"cannot be opened ({_reason(error)})") from None
    return system, path


def _web_options(url: str) -> dict[str, Any]:
    import aiohttp

    # By default a request must end after five minutes, however fast its bytes come.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)
    return {"client_kwargs": {"timeout": timeout}, "encoded": "%" in url}


def _url_of(system: Any, name: str, path: str, url: str) -> str:
    """The URL of a found name, in the form in which the user gave that of `path`."""
    if is_url(name):
        return name
    links = url.split("::")
    for index, link in enumerate(links):
        if path and link.endswith(path):
            links[index] = link.removesuffix(path) + name
            return "::".join(links)
    return str(system.unstrip_protocol(name))


def _failures() -> tuple[type[BaseException], ...]:
    known = (getattr(sys.modules.get(module), name, None) for module, name in _DRIVER_ERRORS)
    return (OSError, ValueError, *(error for error in known if error is not None))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
