"""Names that a package offers, loaded when they are first touched, so that its import stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offered(
    package: str, places: Mapping[str, str], finish: Callable[[str, Any], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `places` are its modules, and the names that each defines.

    A module without names is offered itself. `finish` makes of a name and its value what is offered.

    >>> touch, _ = offered("tilewright", {"limits": "", "lazy": "offered"})
    >>> touch("limits").__name__, touch("offered") is offered
    ('tilewright.limits', True)
    >>> touch("ofered")
    Traceback (most recent call last):
    AttributeError: module 'tilewright' has no attribute 'ofered'
    """
    where = {name: module for module, names in places.items() for name in names.split()}
    modules = {module for module, names in places.items() if not names}

    def touch(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")  # which makes it an attribute of the package
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{where[name]}"), name)
        value = value if finish is None else finish(name, value)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*where, *modules, *vars(sys.modules[package])})

    return touch, names
