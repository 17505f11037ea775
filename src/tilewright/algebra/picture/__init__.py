"""Pictures of layouts, as SVG and in the terminal, and how many passes a banked memory takes to read them.

>>> from tilewright.algebra import Layout
>>> layout_svg(Layout((4, 8), (8, 1))).startswith("<svg")
True
>>> layout_conflicts(Layout((32, 32), (32, 1)), element_bytes=4)
Conflicts(column=32, row=1)

| file     | subject                                                       |
|----------|---------------------------------------------------------------|
| panels   | which mode runs down, which across, which from panel to panel |
| banks    | memory banks, and the passes of simultaneous accesses         |
| owners   | thread/value partitions: which thread holds which element     |
| palette  | colours that everybody can distinguish, and the text on them  |
| grid     | text and colour of each cell                                  |
| svg      | the picture as an SVG document                                |
| terminal | the picture in a terminal                                     |
"""

from tilewright.algebra.picture.banks import Conflicts, bank_conflicts, layout_conflicts
from tilewright.algebra.picture.owners import partition_conflicts
from tilewright.algebra.picture.svg import layout_svg, partition_svg
from tilewright.algebra.picture.terminal import layout_table, partition_table

__all__ = [
    "Conflicts",
    "bank_conflicts",
    "layout_conflicts",
    "layout_svg",
    "layout_table",
    "partition_conflicts",
    "partition_svg",
    "partition_table",
]
