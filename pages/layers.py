"""How fast is a whole attention layer by the attention inside, and how much of its time is attention?"""

from pages.ui import layers
from pages.ui.shell import layout, page_body

layout.header("layers")
page_body.show(layers.show)
