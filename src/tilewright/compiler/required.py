"""The properties of a plan that `compile` can be asked to require; otherwise a kernel that lacks one causes a
warning.
"""

from __future__ import annotations

from enum import Flag


class Required(Flag):
    """Properties without which compiling a kernel is an error: multiplication atoms; a time near its roofline."""

    NOTHING = 0
    ATOMS = 1
    FAST = 2
