"""The line protocol between `partywall measure` and a tenant, version 1, from the tenant's side.

One JSON object with one key per line, in both directions; docs/tenants.md has all of it. All times are nanoseconds of
CLOCK_MONOTONIC, which the processes of a machine share (`time.monotonic_ns`).
"""

import json
import os
import select
from collections import deque

VERSION = 1
# Longest line in either direction, in bytes.
LINE_MAX = 64 << 10
# A message of an error is for people: its beginning says enough, and the line stays far below its limit.
MESSAGE_MAX = 4_000
# Request lines are written in pieces of about this size: few system calls, and the reader can keep up.
WRITE_BYTES = 32 << 10

EXIT = ("exit", {})


class ProtocolError(Exception):
    """A line that is not of the protocol, in words for the one who wrote the other side."""


def parse(line: bytes) -> tuple[str, dict]:
    """The name and the content of a message to a tenant."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a line of the protocol: {shown(line)}: {error}") from None
    names = [name for name in message if name != "tenant"] if isinstance(message, dict) else []
    if len(names) != 1 or names[0] not in ("run", "stop", "exit") or not isinstance(message[names[0]], dict):
        expected = 'expected an object with one of "run", "stop" and "exit"'
        raise ProtocolError(f"not a line of the protocol: {shown(line)}: {expected}")
    return names[0], message[names[0]]


def shown(line: bytes) -> str:
    return repr(line[:200].decode(errors="replace"))


class Channel:
    """Both ends of a tenant's pipes to its owner, used by one thread: a reader of its own would take the interpreter's
    lock from the loop whose times count."""

    def __init__(self, input_fd: int, output_fd: int):
        self._input, self._output = input_fd, output_fd
        self._poll = select.poll()
        self._poll.register(input_fd, select.POLLIN)
        self._unfinished = b""
        self._messages: deque[tuple[str, dict]] = deque()
        self._ended = False

    def look(self, within_ms: int | None = 0) -> tuple[str, dict] | None:
        """The next message, or None when there is none within the time; without a time, waits for it.

        The end of the input is the message `exit`. About a microsecond when there is nothing to read.
        """
        while not self._messages:
            if self._ended:
                return EXIT
            if not self._poll.poll(within_ms):
                return None
            self._read()
        return self._messages.popleft()

    def _read(self) -> None:
        piece = os.read(self._input, LINE_MAX)
        self._ended = not piece
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        longest = max(map(len, (*lines, self._unfinished)))
        if longest > LINE_MAX:
            raise ProtocolError(f"a line of more than {LINE_MAX} bytes")
        self._messages.extend(parse(line) for line in lines if line.strip())

    def send(self, name: str, content: dict) -> None:
        self._write(json.dumps({name: content}).encode() + b"\n")

    def send_requests(self, times_ns) -> None:
        """`times_ns`: scheduled, start and end of one request after the other."""
        values = iter(times_ns)
        text = ""
        for scheduled, start, end in zip(values, values, values, strict=True):
            text += f'{{"request":{{"scheduled":{scheduled},"start":{start},"end":{end}}}}}\n'
            if len(text) >= WRITE_BYTES:
                self._write(text.encode())
                text = ""
        self._write(text.encode())

    def failed(self, message: str) -> None:
        self.send("failed", {"message": message[:MESSAGE_MAX]})

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._output, data) :]


def take_over_standard_streams() -> Channel:
    """The channel over standard input and output, which nobody else gets: what libraries print goes to standard
    error, and what they read is empty."""
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel
