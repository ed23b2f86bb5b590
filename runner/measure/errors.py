"""Maps an exception to a status and a note, such as the exhausted resource with the required and available amount."""

import re
from collections.abc import Callable

import torch

from results.records import Status

_CUDA_OOM = re.compile(
    r"Tried to allocate (?P<needed>[\d.]+ \w+).*?total capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+)"
)
_PLACE = re.compile(r"at \d+:\d+:")  # begins Triton's messages; the source and a mark below the place follow it
_CPU_OOM = re.compile(r"(?:can't allocate memory|not enough memory).*?(?:allocate|allocating)\s+(?P<bytes>\d+) bytes")


def describe(error: BaseException) -> tuple[Status, str]:
    """Return the status and the note of a cell that raised an exception."""
    if is_out_of_memory(error):
        return Status.OOM, _memory_note(str(error))
    # Triton's class is not imported, because Triton is optional here.
    if type(error).__name__ == "OutOfResources":
        name, required, limit = (getattr(error, field, "?") for field in ("name", "required", "limit"))
        return Status.OUT_OF_RESOURCES, f"Out of {name}: required {required}, limit {limit}."
    if isinstance(error, NotImplementedError) or type(error).__name__ == "UnsupportedCase":
        return Status.UNSUPPORTED, telling_line(error)
    return Status.ERROR, f"{type(error).__name__}: {telling_line(error)}"


def failure(action: Callable[[], object]) -> tuple[Status, str] | None:
    """Return how a kernel's work failed, as its status and note; None if it did not."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - every exception of a kernel is a result
        return describe(error)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the host ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_CPU_OOM.search(str(error)))


def context_is_broken() -> bool:
    """Return whether an earlier fault made this process's CUDA context unusable."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def telling_line(error: BaseException) -> str:
    """Return the first line of a message, and the line that says the fault if the first one only announces it."""
    first, *rest = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    if _PLACE.fullmatch(first) and rest:
        cause = error.__cause__ if rest[-1] == "^" else None  # of a fault in a function that this one calls
        first = f"{first} {telling_line(cause) if cause else rest[-1]}"
    elif first.endswith(":") and rest:
        first = f"{first} {rest[0]}"
    return first[:400]


def _memory_note(text: str) -> str:
    if match := _CUDA_OOM.search(text):
        return "Out of device memory: needed {needed} more, {free} of {total} were free.".format(**match.groupdict())
    if match := _CPU_OOM.search(text):
        return f"Out of memory: needed {int(match['bytes']) / 2**30:.2f} GiB more than is available."
    return f"Out of memory: {text.splitlines()[0] if text else 'no details'}"
