"""The programs of a module as one LLVM text: names that two of them share are told apart, the same text stands once."""

from __future__ import annotations

import re

from tilewright.errors import CodeGenerationError

_DEFINED = re.compile(r"^(?:define\s[^@]*|)@([\w.$-]+)")
_OWN = re.compile(r"^define (?!internal )")


def _parts(text: str) -> list[str]:
    """The declarations, tables and functions of an LLVM text, in order."""
    parts: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside:
            parts[-1] += f"\n{line}"
            inside = line != "}"
        elif line.strip():
            parts.append(line)
            inside = line.startswith("define ") and not line.endswith("}")
    return parts


def _defined(part: str) -> str | None:
    """The name that a part defines; None for a declaration."""
    match = _DEFINED.match(part)
    return match[1] if match else None


class ProgramTexts:
    """LLVM texts that become one: every function in it is internal, so that none clashes with a caller's.

    >>> texts = ProgramTexts("both")
    >>> texts.add("declare void @g()\\ndefine void @f() {\\n  ret void\\n}\\n", "f")
    'both.f'
    >>> texts.add("declare void @g()\\ndefine void @f() {\\n  unreachable\\n}\\n", "f")
    'both.f.1'
    >>> print(texts.text)
    declare void @g()
    define internal void @both.f() {
      ret void
    }
    define internal void @both.f.1() {
      unreachable
    }
    """

    def __init__(self, name: str):
        self.name = name
        self._parts: dict[str, None] = {}
        self._taken: dict[str, str] = {}

    def add(self, text: str, function: str) -> str:
        """Takes a program's text; gives the name that its function has here."""
        parts = [_OWN.sub("define internal ", part) for part in _parts(text)]
        names: dict[str, str] = {}
        for part in parts:
            defined = _defined(part)
            if defined is None:
                continue
            if defined == function:
                names[defined] = self._free(f"{self.name}.{defined}")
            elif self._taken.setdefault(defined, part) != part:
                names[defined] = self._free(defined)
        if function not in names:
            raise CodeGenerationError(f"the text of {function} defines no function of that name")
        pattern = re.compile("@(" + "|".join(map(re.escape, names)) + r")(?![\w.$-])")
        for part in parts:
            renamed = pattern.sub(lambda match: f"@{names[match[1]]}", part)
            defined = _defined(renamed)
            if defined is not None and self._taken.get(defined) not in ("", part, renamed):
                raise CodeGenerationError(f"two programs of {self.name} define {defined} in different ways")
            if defined is not None:
                self._taken[defined] = renamed
            self._parts[renamed] = None
        return names[function]

    def _free(self, name: str) -> str:
        """The name, or one with a number where another text has it."""
        free, number = name, 0
        while free in self._taken:
            number += 1
            free = f"{name}.{number}"
        self._taken[free] = ""
        return free

    def add_entry(self, text: str) -> None:
        """Takes the text of the kernel's own functions, whose names are the kernel's."""
        self._parts |= dict.fromkeys(_parts(text))

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self._parts)
