"""How fast is each implementation as sequences grow, and how near to the peak of the device?"""

from pages.ui import scaling
from pages.ui.shell import layout

layout.header("scaling")
scaling.show()
