"""Which attention kernel is fastest in the models people use, shape by shape?"""

from pages.ui import shapes
from pages.ui.shell import layout

layout.header("shapes")
shapes.show()
