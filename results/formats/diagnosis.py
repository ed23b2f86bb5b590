"""The fault of a file that no format reads, described by the kind of the file."""

import codecs
import io
import json
import zipfile

from results.formats.archives import BROKEN
from results.formats.upload import Upload

POSSIBLE = (
    "Possible are tables (CSV, Excel, Markdown), run folders, exports of attnbench, and result files of other tools as "
    "they are."
)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # these get another message
_LOOKED_AT = 1 << 16


def of(upload: Upload) -> str | None:
    """Return the fault of a file and its remedy; None for a sound file."""
    start = upload.data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if upload.data[:2] == b"PK":
        said = _of_zip(upload.data)
    elif start in (b"{", b"["):
        said = _of_json(upload.data, lines=start == b"{")
    elif b"\0" in upload.data[:_LOOKED_AT] and upload.kind == "text" and upload.data[:2] not in _UTF_16:
        said = "is neither text nor an archive"
    else:
        return None
    return said and f"{upload.filename} {said}. {POSSIBLE}"


def _of_zip(data: bytes) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.infolist()
    except BROKEN as error:
        return f"begins like a zip archive but cannot be opened ({error}); create the archive again"
    return None


def _of_json(data: bytes, *, lines: bool) -> str | None:
    """Return why JSON cannot be read. For a file of JSON lines, only the first line is checked."""
    try:
        json.loads(data)
    except RecursionError:
        return "is JSON nested too deeply to be read; give the results as flat rows"
    except ValueError as error:
        first = data.lstrip().split(b"\n", 1)[0]
        if lines and first != data and _of_json(first, lines=False) is None:
            return None
        return f"begins like JSON and is not valid JSON ({error}); write it again"
    return None
