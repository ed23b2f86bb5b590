"""`python -m runner record`: run a program in its own process and write which problems of attention it computes.

The process writes what it has seen at most once a second and at its end, so that a program that crashes, is killed or
never ends leaves a recording, too.
"""

import atexit
import contextlib
import importlib.metadata
import importlib.util
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import programs
from results.files.durable import replace_file
from results.paths import REPOSITORY
from runner.supervise.job import Refused

_EVERY_S = 1.0
_START = f"import sys; sys.path[0] = {str(REPOSITORY)!r}; from runner.record import run_recorded; run_recorded()"
_PACKAGES = ("torch", "transformers", "diffusers", "timm")
_FLASH = ("flash_attn", "flash_attn_interface", "flash_attn.cute")  # a recording sees what is imported before it opens


def record(command: Sequence[str], output: Path, name: str | None) -> int:
    """Run a Python program, write its recording, and return the exit code of the program.

    Raises Refused if the command is no Python program or calls of attention were not seen.
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words or not (words[0] == "-m" and len(words) > 1 or Path(words[0]).is_file()):
        raise Refused(
            f"{' '.join(command) or 'Nothing'} is no Python program: give a script or -m MODULE, with its arguments. "
            "A program that another one starts, as with torchrun, opens `with kernels.recording() as calls:` itself."
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
    except OSError as fault:
        raise Refused(f"{output} cannot be written: {fault.strerror}; name another file with --output.") from fault
    title = name or " ".join(Path(word).name if n == 0 else word for n, word in enumerate(words))
    code = subprocess.run([sys.executable, "-c", _START, str(output.absolute()), title, *words]).returncode
    for unfinished in output.absolute().parent.glob(f".{output.name}-*"):  # of a program that was killed while writing
        unfinished.unlink(missing_ok=True)
    ended = f"The program ended by signal {-code}" if code < 0 else f"The program ended with exit code {code}"
    if not output.exists():
        raise Refused(f"{ended} before it had imported torch or computed any attention; nothing is written.")
    found = programs.load(output)
    if code:
        print(f"{ended}; the recording has its calls until then.", file=sys.stderr)
    print(*found.left_out, sep="\n", file=sys.stderr)
    total = sum(call.count for call in found.calls)
    print(f"{output}: {len(found.calls)} problems in {total} calls.")
    if not found.calls:
        raise Refused(f"{output} has no call: no attention that can be recorded was computed in the program's process.")
    return min(abs(code), 1)


def run_recorded() -> None:
    """Run the program of this process's arguments as Python would, and keep its recording in a file."""
    output, title, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    owner, ended = os.getpid(), threading.Event()
    installed = importlib.util.find_spec("attnbench")
    package: Any = importlib.import_module("attnbench" if installed else "kernels")
    installed_as = {each: list(importlib.metadata.distributions(name=each)) for each in _PACKAGES}
    versions = {each: found[0].version for each, found in installed_as.items() if found}
    for name in _FLASH:
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] in ("results", "runner")]:
        del sys.modules[name]  # the program may have modules of these names
    sys.path[0] = os.getcwd() if words[0] == "-m" else str(Path(words[0]).resolve().parent)
    sys.argv = words[1:] if words[0] == "-m" else words
    with package.recording() as seen:

        def write() -> None:
            if os.getpid() == owner:  # not in a forked process
                text = programs.as_text(title, "python -m runner record", seen.as_record(), versions)
                replace_file(output, text)

        def keep_writing() -> None:
            while not ended.wait(_EVERY_S):
                write()

        atexit.register(write)
        threading.Thread(target=keep_writing, daemon=True).start()
        try:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        finally:
            ended.set()
            write()
