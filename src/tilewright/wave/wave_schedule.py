"""Wave's manual schedules: they are taken and not used, since plans say how and the compiler schedules.

>>> @wave_schedule()
... def two_stages():
...     tkw.get_node_by_tag("read_a")  # never run
>>> two_stages
<schedule two_stages, not used>
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WaveSchedule:
    """A schedule that an author wrote; `compat.wave.wave_compile` names it once as ignored."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.__name__, self.__doc__ = function, function.__name__, function.__doc__

    def __repr__(self) -> str:
        return f"<schedule {self.__name__}, not used>"


def wave_schedule(*args: Any, **options: Any) -> Callable[[Callable[..., Any]], WaveSchedule]:
    """Return a decorator that wraps a function as a `WaveSchedule`, which is ignored: the function is never called. All
    arguments are ignored.
    """
    return WaveSchedule
