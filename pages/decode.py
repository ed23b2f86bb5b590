"""Which decode kernel is fastest, what share of the bandwidth does it reach, and what do pages cost?"""

from pages.ui import decode
from pages.ui.shell import layout, page_body

layout.header("decode")
page_body.show(decode.show)
