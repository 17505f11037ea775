"""Lines of LLVM IR that one lane has written, done one after another in Python as they are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "xor": lambda x, y: x ^ y,
    "and": lambda x, y: x & y,
    "shl": lambda x, y: x << y,
    "lshr": lambda x, y: x >> y,
    "udiv": lambda x, y: x // y,
    "urem": lambda x, y: x % y,
    "icmp": lambda x, y: x != y,
}


class Lines:
    """What a writer is to those who write lines; memory is an array of words."""

    def __init__(self, memory: np.ndarray[Any, Any]):
        self.memory, self.known, self.loads = memory, dict[str, Any](), list[int]()

    def declare(self, text: str) -> None:
        """A function that lines call."""

    def once(self, _: Any, text: str) -> str:
        """A line, written again."""
        return self.value(text)

    def value(self, text: str) -> str:
        """A line; its value has a name."""
        name = f"%{len(self.known)}"
        self.known[name] = self._done(text)
        return name

    def number(self, text: str) -> Any:
        """What a name stands for, or a number that is written."""
        return self.known[text] if text in self.known else int(text, 0)  # the one float that is written is zero

    def _done(self, text: str) -> Any:
        word, rest = text.split(" ", 1)
        if word in STEPS:
            one, two = re.sub(r"^(ne )?i\d+ ", "", rest).split(", ")
            return STEPS[word](self.number(one), self.number(two))
        if word in ("inttoptr", "trunc"):
            return self.number(rest.split(" ")[1])
        if word == "ptrtoint":
            return self.number(rest.split(" ")[2])
        if word == "getelementptr":
            return self.number(rest.split(", ")[1].split(" ")[-1]) + int(rest.split(" ")[-1])
        if word == "select":
            which, one, two = (self.number(x.split(" ")[1]) for x in rest.split(", "))
            return one if which else two
        if word == "load":
            place, by = re.search(r"addrspace\(\d\) (\S+), align (\d+)", rest).groups()  # type: ignore[union-attr]
            address = self.number(place)
            assert address % int(by) == 0
            self.loads.append(address)
            return self.memory[address // 4 : address // 4 + 4]
        if word == "extractelement":
            return self.number(rest.split(" ")[3].rstrip(","))[int(rest.split(" ")[-1])]
        given = re.search(r"@llvm\.(\w+)\S*\((.*)\)", rest)
        assert given is not None
        a, b, c = (self.number(x.split(" ")[1]) for x in given[2].split(", "))
        return (int(a) << 32 | int(b)) >> c & 0xFFFFFFFF if given[1] == "fshr" else a * b + c
