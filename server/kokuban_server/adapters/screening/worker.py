"""The process that works on texts: answers each frame on its standard input with one on its output, until there are no more."""

from __future__ import annotations

import sys

from kokuban_server.adapters.screening.frames import LENGTH, answer


def main() -> None:
    """Answer until the input ends: with the server."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        sink.write(answer(source.read(length)))
        sink.flush()


if __name__ == "__main__":
    main()
