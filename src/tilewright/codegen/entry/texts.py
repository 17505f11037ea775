"""String constants of an LLVM module, with a zero byte at the end as in C."""

from __future__ import annotations


def text_constant(label: str, text: str) -> str:
    """Return the LLVM line that defines `text` as a string constant called `label`, such as "@kernel.says.0".

    The constant is in UTF-8 and ends with a zero byte.

    >>> text_constant("@a", "Hi")
    '@a = internal constant [3 x i8] c"\\\\48\\\\69\\\\00"'
    """
    data = text.encode() + b"\0"
    content = "".join(f"\\{byte:02X}" for byte in data)
    return f'{label} = internal constant [{len(data)} x i8] c"{content}"'


class TextConstants:
    """The string constants of a kernel's functions; equal strings are stored once.

    >>> texts = TextConstants("f.says")
    >>> texts.label("Hi"), texts.label(""), texts.label("Hi")
    ('@f.says.0', '@f.says.1', '@f.says.0')
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._labels: dict[str, str] = {}

    def label(self, text: str) -> str:
        """Return the LLVM name of the string constant that holds `text`, such as "@f.says.0".

        A new text gets the next number. A text that was asked for before gets the same name again.
        """
        return self._labels.setdefault(text, f"@{self._prefix}.{len(self._labels)}")

    def lines(self) -> list[str]:
        """Return a list of the LLVM lines that define all string constants asked for so far."""
        return [text_constant(label, text) for text, label in self._labels.items()]
