"""Texts of a module: constants that end with a zero byte, as C reads them."""

from __future__ import annotations


def text_constant(label: str, text: str) -> str:
    """Return the LLVM line that defines `label` (as `@kernel.says.0`) as a text that ends with a zero byte.

    >>> text_constant("@a", "Hi")
    '@a = internal constant [3 x i8] c"\\\\48\\\\69\\\\00"'
    """
    data = text.encode() + b"\0"
    content = "".join(f"\\{byte:02X}" for byte in data)
    return f'{label} = internal constant [{len(data)} x i8] c"{content}"'


class TextConstants:
    """The texts that functions of a kernel point at; each stands in the module once.

    >>> texts = TextConstants("f.says")
    >>> texts.label("Hi"), texts.label(""), texts.label("Hi")
    ('@f.says.0', '@f.says.1', '@f.says.0')
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._labels: dict[str, str] = {}

    def label(self, text: str) -> str:
        """Return the name of the constant that holds a text."""
        return self._labels.setdefault(text, f"@{self._prefix}.{len(self._labels)}")

    def lines(self) -> list[str]:
        """Return the LLVM lines that define all constants so far."""
        return [text_constant(label, text) for text, label in self._labels.items()]
