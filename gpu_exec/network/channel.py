"""The control channel between the two sides: JSON objects, one a line, over TCP."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self

from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.text import plain

LINE_CAP_BYTES = 1 << 20
ANSWER_SECONDS = 60.0
"""Longer than any step of the other side takes."""
CONNECT_SECONDS = 10.0
MOST_DIGITS = 5
"""Of a port."""
MOST_SHOWN = 100


class Channel:
    """Send and receive messages; raise RunFailed when the other side is gone or talks nonsense."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        connection.settimeout(ANSWER_SECONDS)
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise RunFailed(f"the other side is gone ({error})") from None

    def receive(self) -> dict[str, Any]:
        """Wait for one message."""
        try:
            line = self._file.readline(LINE_CAP_BYTES)
        except OSError as error:
            raise RunFailed(f"the other side does not answer ({error})") from None
        if not line:
            raise RunFailed("the other side has closed the connection")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise RunFailed("the other side sent what is no message of this program")
        return message

    def field(self, message: dict[str, Any], key: str, kind: type) -> Any:
        """Return a field of a message of the right type."""
        value = message.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RunFailed(f"the other side sent no {key}; is it the same version?")
        return value

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._file.close()
        self._connection.close()


def place_of(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT`` (an IPv6 address in brackets); raise UsageError for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and len(port) <= MOST_DIGITS
    if not _is_host(host) or not is_port or int(port) > 65_535:
        raise UsageError(f"{plain(text)[:MOST_SHOWN]!r} is no HOST:PORT, such as 10.0.0.2:5600")
    return host, int(port)


def _is_host(text: str) -> bool:
    """Say whether names are looked up for such a text: labels of 1 to 63 characters."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text) and text.isprintable()


def connect(place: tuple[str, int]) -> Channel:
    """Connect to a serving side; raise RunFailed where none answers."""
    try:
        return Channel(socket.create_connection(place, timeout=CONNECT_SECONDS))
    except OSError as error:
        raise RunFailed(
            f"nothing answers at {plain(place[0])}:{place[1]} ({error}); start "
            "`oasis-sim calibrate --network --serve HOST:PORT` there first"
        ) from None


def listen(place: tuple[str, int]) -> socket.socket:
    """Listen at a place; raise RunFailed where that is not possible."""
    try:
        return socket.create_server(place, family=_family(place[0]))
    except OSError as error:
        raise RunFailed(f"cannot listen at {plain(place[0])}:{place[1]} ({error})") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
