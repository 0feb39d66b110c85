"""A connection between two processes of a run; messages are lines of JSON."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

PATIENCE = 2.0  # seconds for sending or receiving
LONGEST = 2**16  # bytes of a message


class Wire:
    """A connection to another process; messages are lines of JSON."""

    def __init__(self, own: socket.socket):
        self.socket, self.rest, self.heard = own, b"", time.monotonic()
        self.process, self.num, self.host = -1, 0, "?"  # as the other end says
        self.lock = threading.Lock()
        own.settimeout(PATIENCE)

    def send(self, **message: Any) -> None:
        """Sends a message, if the other end is still there."""
        with self.lock, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, most: int = LONGEST) -> list[dict[str, Any]]:
        """The messages among the next bytes, `most` of them; waits for a byte.

        Raises:
          OSError: the other end is gone, or does not speak as a process of a run does.
        """
        raw = self.socket.recv(most)
        if not raw or len(self.rest) > LONGEST:
            raise ConnectionResetError
        self.heard = time.monotonic()
        *lines, self.rest = (self.rest + raw).split(b"\n")
        try:
            found = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ConnectionResetError from error
        if not all(isinstance(message, dict) for message in found):
            raise ConnectionResetError
        return found

    def one(self) -> dict[str, Any]:
        """The next message, and nothing of what follows it."""
        while not (found := self.receive(1)):
            pass
        return found[0]

    @property
    def name(self) -> str:
        """The process at the other end."""
        return f"Process {self.process} on {self.host}"
