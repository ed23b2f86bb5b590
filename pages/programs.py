"""Which attention should each call of my program use on my card, and how do I use it?"""

from pages.ui import programs
from pages.ui.shell import layout, page_body

layout.header("programs")
page_body.show(programs.show)
