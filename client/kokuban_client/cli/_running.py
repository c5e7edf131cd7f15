"""A command that runs only as long as something holds: started in a process group of its own, and stopped with all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_STOPPING_S_MAX = 5.0
_LOOK_AGAIN_S = 0.02
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Command:
    """One run of a command. `stop` may be called from any thread, also before it is started."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._mutex = threading.Lock()
        self._group: int | None = None
        self._early: list[int] = []  # signals that came before there was a group
        self._stopped = False
        self._killer = threading.Timer(_STOPPING_S_MAX, self._send, [signal.SIGKILL])
        self._killer.daemon = True

    def run(self) -> int:
        """Run it to its end and give its exit code, as a shell would: 128 and the signal's number where that ended it.

        Signals to this process are passed on to the group. Raises OSError if the command cannot be started.
        """
        with _passed_on(self._pass_on), _ignored(signal.SIGTSTP):
            with self._mutex:
                if self._stopped:
                    return 128 + signal.SIGTERM
                # A group of its own, so that everything that it starts is stopped with it.
                process = subprocess.Popen(  # noqa: S603 - what the user asked for
                    self._arguments, env=self._environment, process_group=0
                )
                self._group = process.pid
            while self._early:
                self._send(self._early.pop(0))
            with _terminal_lent_to(process.pid):
                code = _code_of(process)
                self._wait_for_the_rest(process.pid)
        return 128 - code if code < 0 else code

    def _wait_for_the_rest(self, group: int) -> None:
        """Where it was stopped, wait until all that it had started has ended."""
        look_again = threading.Event()
        while self._stopped and _is_there(group):
            look_again.wait(_LOOK_AGAIN_S)
        with self._mutex:
            self._group = None  # the number is free for others now
            self._killer.cancel()

    def stop(self) -> None:
        """Ask everything in the group to end, and kill what has not ended after 5 seconds. Waits for neither."""
        with self._mutex:
            if self._stopped:
                return
            self._stopped = True
            if self._group is None:
                return
            self._killer.start()
        self._send(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        if self._group is None:
            self._early.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        group = self._group
        if group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _code_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the command to end, and let every signal that comes meanwhile be handled at once.

    A signal does not wake a thread that waits for a process if it came to another thread, or to this one just before it
    began to wait: Python would handle it when the process has ended. A byte in a socket is there for whoever looks later.
    """
    if threading.current_thread() is not threading.main_thread():
        return process.wait()
    ours, its = socket.socketpair()
    with ours, its:
        its.setblocking(False)  # as it must be for the numbers of signals
        before = signal.set_wakeup_fd(its.fileno(), warn_on_full_buffer=False)
        try:
            threading.Thread(target=_tell_end_of, args=[process, its], daemon=True).start()
            while ours.recv(64):
                pass
        finally:
            signal.set_wakeup_fd(before)
    return process.wait()


def _tell_end_of(process: subprocess.Popen[bytes], teller: socket.socket) -> None:
    process.wait()
    teller.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _passed_on(send: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not for this thread
        return
    before = {number: signal.signal(number, lambda received, _: send(received)) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ignored(number: int) -> Iterator[None]:
    """Ignore a signal, here and in what is started meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def _terminal_lent_to(group: int) -> Iterator[None]:
    """Let a process group read from our terminal, if there is one and it is ours."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            yield
            return
        with _ignored(signal.SIGTTOU):  # which a group gets that takes the terminal from behind
            with contextlib.suppress(OSError):  # the command has ended already
                os.tcsetpgrp(terminal, group)
                os.killpg(group, signal.SIGCONT)  # it may have asked for the terminal a moment too early
            try:
                yield
            finally:
                os.tcsetpgrp(terminal, os.getpgrp())
    finally:
        os.close(terminal)
