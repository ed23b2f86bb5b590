"""How much memory does each implementation take as sequences grow, and when does it no longer fit?"""

from pages.ui import memory
from pages.ui.shell import layout, page_body

layout.header("memory")
page_body.show(memory.show)
