"""Work on uploaded files in a process with limits of memory and time, so that no file takes the machine down.

A small server process imports the readers once and forks a child for each call, which takes milliseconds. The child
ends with its call. A call that reaches a limit is refused in words, like any other file that cannot be taken.
"""

import atexit
import contextlib
import importlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from results.formats.errors import UploadError
from results.paths import REPOSITORY

MEMORY = 2 << 30  # bytes, in addition to those of the imported modules
SECONDS = 60  # of processor time; the largest table takes about 30
WAIT_S = 300  # for the answer, on a busy machine
MAX_ANSWER = 256 << 20  # bytes of the pickled answer, which the caller has to hold
_READERS = ("results.formats", "results.checks")  # modules that the server imports in advance
_ADVICE = "Nothing of it is taken. Split the file."
_start = threading.Lock()
_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None


class _TooLong(BaseException):
    """The time limit is reached. Not an Exception, so that no reader catches it."""


def call(work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the answer of a function of this project, called in a process with limits, or raise what it raised.

    Raises UploadError if the call reaches a limit. Both ways go through pickle, between processes of this program only.
    """
    ours, theirs = Pipe()
    with ours, theirs:
        _hand_over(theirs)
        theirs.close()
        try:
            ours.send((work, arguments, named, MEMORY, SECONDS))
            if not ours.poll(WAIT_S):
                raise UploadError(f"No answer within {WAIT_S} s: this machine is too busy. Try again later.")
            answer = ours.recv_bytes()
        except (OSError, EOFError) as error:
            raise UploadError(f"The process was ended at its limits. {_ADVICE}") from error
    is_error, value = pickle.loads(answer)
    if is_error:
        raise value
    return value


def _hand_over(connection: Connection) -> None:
    """Give a connection to the server, which is started if it is not running."""
    global _server
    with _start:
        if _server is None or _server[0].poll() is not None:
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            theirs.close()
            _server = process, ours
            atexit.register(_end, process, ours)
        socket.send_fds(_server[1], [b"."], [connection.fileno()])


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait()


def _serve(control: socket.socket) -> None:
    """Fork a child for each connection, until the caller's process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children are not kept
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends it by closing the connection
    for name in _READERS:
        importlib.import_module(name)
    while connections := socket.recv_fds(control, 1, 1)[1]:
        if os.fork() == 0:
            control.close()
            try:
                _answer(Connection(connections[0]))
            finally:
                os._exit(0)
        os.close(connections[0])


def _answer(connection: Connection) -> None:
    """Receive a call, make it within the limits, and send its answer or its exception."""
    work, arguments, named, memory, seconds = connection.recv()
    try:
        _limit(memory, seconds)
        data = pickle.dumps((False, work(*arguments, **named)))
        if len(data) > MAX_ANSWER:
            raise UploadError(f"The file holds more than {MAX_ANSWER >> 20} MiB once it is read. {_ADVICE}")
    except MemoryError:
        data = _refusal(f"Reading the file needs more than {memory >> 30} GiB of memory. {_ADVICE}")
    except _TooLong:
        data = _refusal(f"Reading the file takes more than {seconds} s. {_ADVICE}")
    except Exception as error:  # of any call, whose caller raises it again
        data = pickle.dumps((True, error))
    connection.send_bytes(data)


def _refusal(sentence: str) -> bytes:
    return pickle.dumps((True, UploadError(sentence)))


def _limit(memory: int, seconds: int) -> None:
    """Limit the memory and the time of this process, as far as the system can."""

    def too_long(*_: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGXCPU, too_long)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    with contextlib.suppress(ValueError, OSError):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as from_caller:
        _serve(from_caller)
