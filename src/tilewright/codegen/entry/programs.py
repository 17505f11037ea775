"""Linking of a module's programs into one LLVM text: clashing names are changed, equal definitions merged."""

from __future__ import annotations

import re

from tilewright.errors import CodeGenerationError

_DEFINED = re.compile(r"^(?:define\s[^@]*|)@([\w.$-]+)")
_OWN = re.compile(r"^define (?!internal )")


def _parts(text: str) -> list[str]:
    """Return the declarations, global variables and functions of an LLVM text, each as a string, in order.

    Blank lines are left out.
    """
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
    """Return the name, without the "@", that `part` of an LLVM text defines: a global variable or a function.

    None if `part` is a declaration.
    """
    match = _DEFINED.match(part)
    return match[1] if match else None


class ProgramTexts:
    """LLVM texts linked into one; all their functions are internal, so that no name clashes with a caller's.

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
        self._definitions: dict[str, str] = {}

    def add(self, text: str, function: str) -> str:
        """Add the LLVM text of a program, which must define `function`; return the new name of this function,
        "NAME.function".

        All functions of `text` become internal. A name that an earlier text uses for another definition is changed;
        equal definitions are kept once. Raise CodeGenerationError if `text` does not define `function`, or if a clash
        remains.
        """
        parts = [_OWN.sub("define internal ", part) for part in _parts(text)]
        names: dict[str, str] = {}
        for part in parts:
            defined = _defined(part)
            if defined is None:
                continue
            if defined == function:
                names[defined] = self._free(f"{self.name}.{defined}")
            elif self._definitions.setdefault(defined, part) != part:
                names[defined] = self._free(defined)
        if function not in names:
            raise CodeGenerationError(f"the text of {function} defines no function of that name")
        pattern = re.compile("@(" + "|".join(map(re.escape, names)) + r")(?![\w.$-])")
        for part in parts:
            renamed = pattern.sub(lambda match: f"@{names[match[1]]}", part)
            defined = _defined(renamed)
            if defined is not None and self._definitions.get(defined) not in ("", part, renamed):
                raise CodeGenerationError(f"two programs of {self.name} define {defined} in different ways")
            if defined is not None:
                self._definitions[defined] = renamed
            self._parts[renamed] = None
        return names[function]

    def _free(self, name: str) -> str:
        """Return the first of `name`, "name.1", "name.2", ... that is not in use, and reserve it."""
        free, number = name, 0
        while free in self._definitions:
            number += 1
            free = f"{name}.{number}"
        self._definitions[free] = ""
        return free

    def add_entry(self, text: str) -> None:
        """Add the LLVM text of the kernel's entry functions, which callers use. Function names are not changed.

        Declarations and definitions that were added before are not repeated.
        """
        self._parts |= dict.fromkeys(_parts(text))

    @property
    def text(self) -> str:
        """All texts added so far as one LLVM text."""
        return "\n".join(self._parts)
