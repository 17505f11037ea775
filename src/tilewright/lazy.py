"""Lazy imports: names that a package offers are loaded at their first use, so that importing the package is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def offered(
    package: str, places: Mapping[str, str], finish: Callable[[str, Any], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return two functions, (`__getattr__`, `__dir__`), for a package that imports its submodules at the first use of
    their names.

    `places` is {submodule: names that it defines, separated by blanks}. If there are no names, the submodule itself is
    offered. `finish(name, value)`, if given, returns the object to offer in place of `value`. `__getattr__` raises
    AttributeError for a name that is not offered.

    >>> touch, _ = offered("tilewright", {"limits": "", "lazy": "offered"})
    >>> touch("limits").__name__, touch("offered") is offered
    ('tilewright.limits', True)
    >>> touch("ofered")
    Traceback (most recent call last):
    AttributeError: module 'tilewright' has no attribute 'ofered'
    """
    module_of = {name: module for module, names in places.items() for name in names.split()}
    modules = {module for module, names in places.items() if not names}

    def touch(name: str) -> Any:
        """Import and return the object `name` of the package, and set it as an attribute of the package. Raise
        AttributeError if the package does not offer `name`.
        """
        if name in modules:
            return import_module(f"{package}.{name}")  # which makes it an attribute of the package
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        value = value if finish is None else finish(name, value)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        """Return the names that the package offers or already has, sorted."""
        return sorted({*module_of, *modules, *vars(sys.modules[package])})

    return touch, names
