"""The guard in front of Streamlit's server, which has no setting for either of its two rules, and what it adds.

A page of another origin may not frame the app: it could draw the app below its own page and guide a click to a button.
Only a session that may change anything may send files, because Streamlit keeps any number of them in memory.
The answer with the page names parts of Streamlit that the browser would load one after the other, to load them at once
and run them while it waits for the server. It also holds the styles of all pages, which follow Streamlit's, and a
script that runs before Streamlit's.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import streamlit as st

from pages.ui.shell import access

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]
HEADERS = ((b"content-security-policy", b"frame-ancestors 'self'"), (b"x-frame-options", b"SAMEORIGIN"))
_PARTS = (
    "BidiComponent", "Button", "ButtonGroup", "Html", "PageLink", "WidgetLabel", "WidgetLabelHelpIconInline",
    "_arrayReduce", "purify.es", "recordbatch", "serialization", "styled-components", "useBasicWidgetState",
)  # fmt: skip
_FILES = [
    f"./static/js/{file.name}"
    for part in _PARTS
    for file in Path(st.__file__).parent.glob(f"static/static/js/{part}.*.js")
]
AHEAD = (b"link", ", ".join(f"<{name}>; rel=modulepreload; crossorigin" for name in _FILES).encode())
_HERE = Path(__file__).parent
_STYLE, _SCRIPT = ((_HERE / name).read_text(encoding="utf-8") for name in ("layout.css", "before.js"))
_IMPORTS = "".join(f'import "{name}";' for name in _FILES)
_ADDED = f'<style>{_STYLE}</style><script>{_SCRIPT}</script><script type="module">{_IMPORTS}</script></body>'.encode()
_OF_FILE = (b"content-length", b"etag", b"last-modified")  # headers that are wrong once the page is changed
# With these headers Streamlit compresses the page, or sends none to a browser that holds the page of another app.
_WHOLE = (b"accept-encoding", b"if-modified-since", b"if-none-match")


class Guard:
    """An ASGI application that refuses to be framed, and to take bytes of sessions that may only read."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        """Pass the request on, and add the headers to its answer; refuse bytes before any of them is read."""

        page = False
        asked = scope.get("headers", ())
        if any(name == b"accept" and b"text/html" in value for name, value in asked):
            asked = [each for each in asked if each[0] not in _WHOLE]

        async def with_headers(message: Message) -> None:
            nonlocal page
            if message["type"] == "http.response.start":
                known = list(message.get("headers", ()))
                page = any(name == b"content-type" and value.startswith(b"text/html") for name, value in known)
                if page:
                    known = [AHEAD, *(each for each in known if each[0] not in _OF_FILE)]
                message["headers"] = [*known, *HEADERS]
            elif page:
                message["body"] = message.get("body", b"").replace(b"</body>", _ADDED, 1)
            await send(message)

        reads = scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS")
        if reads or access.may_send(scope["path"].split("/")):
            await self._app({**scope, "headers": asked}, receive, with_headers)
        else:
            await with_headers({"type": "http.response.start", "status": 403, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": access.OFF.encode()})
