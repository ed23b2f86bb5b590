"""How far from float64 is an implementation, and what does its speed cost in accuracy?"""

from pages.ui import accuracy
from pages.ui.shell import layout

layout.header("accuracy")
accuracy.show()
