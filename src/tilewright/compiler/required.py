"""The properties of a plan that `compile` is asked to require; without them a kernel warns where it lacks one."""

from __future__ import annotations

from enum import Flag


class Required(Flag):
    """Properties without which compiling a kernel is an error: multiplication atoms; a time near its roofline."""

    NOTHING = 0
    ATOMS = 1
    FAST = 2
