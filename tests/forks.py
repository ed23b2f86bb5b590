"""Code in forks of a process that has imported torch and Triton, which takes seconds."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SERVED = """
import json, os, sys
import torch, triton
for line in sys.stdin:
    path, code, folder, *said = json.loads(line)
    if not os.fork():
        sys.path[:0], sys.argv = path, ["example"]
        os.chdir(folder)
        for stream, file in enumerate(said, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.wait()[1], flush=True)
"""


@contextmanager
def forks(place: Path, environment: dict[str, str]) -> Iterator[Callable[..., str]]:
    """Give a function that runs code in a folder, `place` by default, with folders to import from.

    It returns the standard output, and leaves the standard error in the file `errors` of that folder.
    """
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVED], cwd=place, env=environment, **piped) as server:

        def answer(code: str, *path: Path, folder: Path = place) -> str:
            said, errors = folder / "said", folder / "errors"
            print(json.dumps([path, code, folder, said, errors], default=str), file=server.stdin, flush=True)
            assert server.stdout.readline() == "0\n", said.read_text() + errors.read_text()
            return said.read_text()

        yield answer
        server.stdin.close()
