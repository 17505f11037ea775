"""Writes the API reference `api.md` from the docstrings; run by `make api`.

Every public name of every public module stands in it once, with its signature and what its docstring says in prose.
The docstrings' examples run as tests where they stand and are left out here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

from tilewright import Executable, cli
from tilewright.compiler.native import NativeExecutable

FILE = Path(__file__).parent / "api.md"
MODULES = (
    *("tilewright", "tilewright.lang", "tilewright.wave", "tilewright.kernels", "tilewright.wave.templates"),
    *("tilewright.block", "tilewright.algebra", "tilewright.problems", "tilewright.errors", "tilewright.ir"),
    *("tilewright.compat.wave", "tilewright.lang.sympy", "tilewright.lang.global_symbols"),
)
BEHIND = {Executable: NativeExecutable}
"""Public classes and what callers of the package get in their place: its members are listed."""
COMMANDS = "The command line"
INTRODUCTION = """\
# API reference

This page is the reference of all public names, for users who know the languages and look up a function. To learn the
languages, begin with [language.md](language.md) or [coming_from_triton.md](coming_from_triton.md).

- `make api` writes this page from the docstrings. Do not edit it by hand.
- The docstrings have examples, which run as tests: `help(tilewright.kernels.gemm)` shows them.
- The [glossary](glossary.md) defines Tilewright's own words.
- Names that are not on this page may change at any time.
  [CONTRIBUTING.md](../CONTRIBUTING.md#versions) says what versions promise.
"""


def reference() -> str:
    """The text of `api.md`.

    >>> reference().splitlines()[0]
    '# API reference'
    """
    modules = {name: importlib.import_module(name) for name in MODULES}
    contents = [f"- [`{name}`](#{_anchor(name)}): {_summary(module)}" for name, module in modules.items()]
    contents.append(f"- [{COMMANDS}](#{_anchor(COMMANDS)}): {_prose(cli.__doc__)[0]}")
    parts = [INTRODUCTION, "\n".join(map(_filled, contents))]
    for name, module in modules.items():
        parts += [f"\n## `{name}`\n", _filled(_summary(module))]
        parts += [f"\n{entry}" for entry in _entries(module)]
    parts += [f"\n## {COMMANDS}\n", "`tilewright COMMAND`, or `python -m tilewright COMMAND`."]
    parts += [f"\n{command}" for command in _commands()]
    return "\n".join(parts) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers: those it lists, or else the classes and functions that it defines.

    >>> public_names(importlib.import_module("tilewright.wave.templates"))
    ['get_igemm_conv2d']
    """
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=lambda name: (name.casefold(), name))
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return [name for name in own if not name.startswith("_")]


# -- entries --------------------------------------------------------------------------------------------------


def _entries(module: ModuleType) -> Iterator[str]:
    """An entry for each public name; names that differ in nothing but the name, as exp and log, share one."""
    shared: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in public_names(module):
        signature, paragraphs = _described(module, name)
        itself = rf"(?<!\w){re.escape(_escaped(name))}(?!\w)"
        key = (signature, tuple(re.sub(itself, "{}", paragraph) for paragraph in paragraphs))
        shared.setdefault(key, []).append(name)
    for (signature, paragraphs), names in shared.items():
        alone = len(names) == 1
        each = f"; each `{signature}`" if signature else ""
        head = f"`{names[0]}{signature}`" if alone else ", ".join(f"`{name}`" for name in names) + each
        itself = _escaped(names[0]) if alone else "*name*"
        yield _entry(head, [re.sub("{}" if alone else "`?{}`?", itself, paragraph) for paragraph in paragraphs])


def _entry(head: str, paragraphs: list[str]) -> str:
    """What a name is, under its signature; paragraphs that begin with a dash are its members."""
    text = _filled(f"- {head}")
    for number, paragraph in enumerate(paragraphs):
        follows = paragraph.startswith("- ") and paragraphs[number - 1].startswith("- ")
        text += ("\\\n" if number == 0 else "\n" if follows else "\n\n") + _filled(paragraph, 2)
    return text


def _described(module: ModuleType, name: str) -> tuple[str, list[str]]:
    """(the signature, the paragraphs) of a public name."""
    value = getattr(module, name)
    if inspect.ismodule(value):
        return "", [f"A module: {_summary(value)}"]
    usual = str(getattr(value, "__name__", getattr(value, "name", name)))
    if usual != name and usual in public_names(module) and getattr(module, usual) is value:
        return "", [f"Another name for `{usual}`."]
    for home in MODULES:
        known = importlib.import_module(home)
        lives = str(getattr(value, "__module__", "")).startswith(f"{home}.")
        if lives and known is not module and getattr(known, name, None) is value and name in public_names(known):
            return "", [f"As in [`{home}`](#{_anchor(home)})."]
    if inspect.isroutine(value):
        return _signature(value), _prose(value.__doc__)
    if not isinstance(value, type):
        return "", _prose(_said_of(module, name)) or _prose(type(value).__doc__)
    if issubclass(value, BaseException):
        return f"({', '.join(base.__name__ for base in value.__bases__)})", _prose(value.__doc__)
    if issubclass(value, Enum):
        return "", [*_prose(value.__doc__), f"One of {', '.join(f'`{member.name}`' for member in value)}."]
    made = "[...]" if hasattr(type(value), "__getitem__") else _signature(value)
    return made, [*_prose(value.__doc__), *_members(value, public_names(module))]


def _members(kind: type, public: list[str]) -> Iterator[str]:
    """A line for each public method and property that says something of its own.

    Those of bases that are not public themselves count as the class's own.
    """
    seen = BEHIND.get(kind, kind)
    ours = [base for base in reversed(seen.__mro__) if base is kind or base.__name__ not in public]
    members = {
        name: value for base in ours if base.__module__.startswith("tilewright") for name, value in vars(base).items()
    }
    for name, value in sorted(members.items()):
        function = getattr(value, "__func__", value)
        text = _prose(getattr(function, "__doc__", None))[:1]
        if not text or (name.startswith("_") and name != "__call__"):
            continue
        if isinstance(value, property | cached_property):
            yield f"- `.{name}`: {text[0]}"
        elif inspect.isfunction(function):
            head = "" if name == "__call__" else f".{name}"
            yield f"- `{head}{_signature(function, bound=not isinstance(value, staticmethod))}`: {text[0]}"


def _said_of(module: ModuleType, name: str) -> str | None:
    """The text that stands under the assignment of a name, in the module that it comes from."""
    statements = ast.parse(inspect.getsource(module)).body
    for statement, following in zip(statements, [*statements[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.ImportFrom) and any(name in (a.asname, a.name) for a in statement.names):
            origin = next(a.name for a in statement.names if name in (a.asname, a.name))
            return _said_of(importlib.import_module(str(statement.module)), origin)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            said = following.value if isinstance(following, ast.Expr) else None
            return said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else None
    return None


def _commands() -> Iterator[str]:
    """An entry for each command, with its arguments and options."""
    group: Any = typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        head = " ".join([name, *(p.metavar if p.required else f"[{p.metavar}]" for p in arguments)])
        paragraphs = _prose(command.help.split("\b")[0])
        options = [
            (" ".join([p.opts[0], p.metavar or ""]).strip(), p.help) for p in command.params if p not in arguments
        ]
        paragraphs += [f"- `{option}`: {_escaped(said)}" for option, said in options]
        yield _entry(f"`tilewright {head}`", paragraphs)


# -- text -----------------------------------------------------------------------------------------------------


def _summary(module: ModuleType) -> str:
    """What a module is for: the first paragraph of its docstring."""
    return _prose(module.__doc__)[0]


def _prose(doc: str | None) -> list[str]:
    """The paragraphs of a docstring that are neither examples nor tables, each on one line."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return [_escaped(" ".join(p.split())) for p in paragraphs if p.strip() and not p.lstrip().startswith((">>>", "|"))]


def _escaped(text: str) -> str:
    """The text with Markdown's marks taken literally, except in `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<]|\b_|_\b)", r"\\\1", part) for part in parts)


def _signature(value: Any, *, bound: bool = False) -> str:
    """The parameters as they are written, without those annotations that say nothing."""
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    shown = [p.replace(annotation=_annotation(p.annotation), default=_default(p.default)) for p in parameters]
    return str(signature.replace(parameters=shown, return_annotation=_annotation(signature.return_annotation)))


class _Written(str):
    """A text that prints without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _annotation(annotation: Any) -> Any:
    if annotation in (inspect.Parameter.empty, Any, None, "Any", "None"):
        return inspect.Parameter.empty
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Written(re.sub(r"(?<![\w.])(?!np\.)(?:[a-z_]\w*\.)+(?=[A-Z])", "", text))


def _default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return default
    return _Written(default if isinstance(default, Enum) else repr(default).replace("'", '"'))


def _filled(text: str, indent: int = 0) -> str:
    """Lines of at most 120 characters, none of which begins as a list or a heading would, but the first."""
    whole = re.sub(r" (?=(?:[-+*#>=]|\d+[.)]) )", "\0", text)
    hanging = " " * (indent + (2 if text.startswith("- ") else 0))
    lines = textwrap.wrap(
        whole,
        118,
        initial_indent=" " * indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def _anchor(heading: str) -> str:
    """Where GitHub puts a heading's mark."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def main() -> None:
    """Writes the file."""
    FILE.write_text(reference(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
