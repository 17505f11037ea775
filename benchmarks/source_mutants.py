"""Mutants of the package: one-line changes of its functions, drawn with a seed, printed, read again, and applied.

`draw(root, count, seed)` draws lines evenly: of all lines in bodies of functions of `src/tilewright` that have a
mutation, then one kind of mutation that the line has, then one mutation of this kind. A line is drawn once at most.

| kind      | mutations                                                                                            |
|-----------|------------------------------------------------------------------------------------------------------|
| sign      | `+` and `-`, `*` and `//`, `<<` and `>>`, `&` and `|` change places; `-x` becomes `x`                |
| bound     | `<` and `<=`, `>` and `>=`, `==` and `!=` change places; so do `in` and `not in`, `is` and `is not`  |
| constant  | an integer becomes one more or one less; `True` and `False` change places                            |
| condition | a condition is negated; `and` and `or` change places                                                 |
| drop      | an assignment to an existing name, a call, `raise`, `continue`, `break`, an early `return`: `pass`   |

Docstrings, annotations, decorators, default values and f-strings have no mutations, and code outside functions neither.
`torch/` and `jax/` are left out: most environments cannot run their tests.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SOURCE = "src/tilewright"
LEFT_OUT = ("torch", "jax")
ARROW = " -> "
_FORM = re.compile(r"(?P<file>\S+):(?P<line>\d+) (?P<function>[^\s#]+)(#(?P<occurrence>\d+))?: (?P<old>.*)")


class StaleMutant(ValueError):
    """The source no longer has the line of a mutant."""


@dataclass(frozen=True)
class Mutant:
    """A line of a function and the line that takes its place, both without indentation.

    The line is found by its text: it is the `occurrence`-th line of the function with the text `old`. Its number
    `line` is for readers.
    """

    file: str
    line: int
    function: str
    old: str
    new: str
    occurrence: int = 1

    def __str__(self) -> str:
        which = f"#{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.file}:{self.line} {self.function}{which}: {self.old}{ARROW}{self.new}"

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What says which mutant it is; the number of its line may change."""
        return self.file, self.function, self.occurrence, self.old, self.new

    @property
    def reached_by(self) -> str:
        """Its function as `reached_functions.py` names it."""
        return f"{self.file.removeprefix(SOURCE + '/')} {self.function}"


def read(text: str) -> Mutant:
    """Return the mutant that one line of a list states."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match["old"].count(ARROW) != 1:
        raise ValueError(f"no mutant: {text!r}; its form is `FILE:LINE FUNCTION: OLD{ARROW}NEW`")
    old, new = match["old"].split(ARROW)
    return Mutant(match["file"], int(match["line"]), match["function"], old, new, int(match["occurrence"] or 1))


def read_list(path: Path) -> list[Mutant]:
    """Return the mutants of a list, one a line; lines that begin with `#` are comments."""
    return [read(line) for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


# -- applying -----------------------------------------------------------------------------------------------------


def apply(mutant: Mutant, text: str) -> str:
    """Return the file's text with the mutant's line in the place of the line that it changes."""
    rows = text.splitlines(keepends=True)
    numbers = [
        number
        for number in _lines_of_functions(text).get(mutant.function, ())
        if rows[number - 1].strip() == mutant.old
    ]
    if len(numbers) < mutant.occurrence:
        raise StaleMutant(f"{mutant.file}: {mutant.function} has no line `{mutant.old}` number {mutant.occurrence}")
    at = numbers[mutant.occurrence - 1] - 1
    rows[at] = rows[at].replace(mutant.old, mutant.new, 1)
    return "".join(rows)


def stale(mutants: list[Mutant], root: Path) -> list[str]:
    """Return why mutants cannot be applied to the tree `root`, one text for each such mutant."""
    reasons = []
    for mutant in mutants:
        try:
            apply(mutant, (root / mutant.file).read_text())
        except (StaleMutant, OSError) as error:
            reasons.append(str(error))
    return reasons


def _functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield (qualified name, definition) of all functions below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield outer + child.name, child
            yield from _functions(child, f"{outer}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{outer}{child.name}.")
        else:
            yield from _functions(child, outer)


@lru_cache(16)
def _lines_of_functions(text: str) -> dict[str, list[int]]:
    """Return the numbers of the lines in the bodies of each function."""
    lines: dict[str, list[int]] = defaultdict(list)
    for name, function in _functions(ast.parse(text)):
        lines[name] += range(function.body[0].lineno, (function.end_lineno or 0) + 1)
    return lines


# -- drawing ------------------------------------------------------------------------------------------------------


def draw(root: Path, count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return `count` mutants of the tree `root`, in a random order: the same for the same source and seed.

    A file's path contains a match of the regular expression `only`.
    """
    rng = random.Random(seed)
    paths = {path.relative_to(root).as_posix(): path for path in sorted((root / SOURCE).rglob("*.py"))}
    files = [file for file in paths if file.split("/")[2] not in LEFT_OUT and re.search(only, file)]
    texts = {file: paths[file].read_text() for file in files}
    mutations = {(file, line): kinds for file, text in texts.items() for line, kinds in mutations_of(text).items()}
    places = list(mutations)
    rng.shuffle(places)
    drawn: list[Mutant] = []
    for file, line in places:
        if len(drawn) == count:
            break
        kinds = mutations[file, line]
        function, new = rng.choice(kinds[rng.choice(sorted(kinds))])
        drawn += _valid(file, texts[file], line, function, new)
    return drawn


def _valid(file: str, text: str, line: int, function: str, new: str) -> list[Mutant]:
    """Return the mutant in a list, or nothing if its text cannot be printed and read, or is no Python."""
    rows = text.splitlines()
    old = rows[line - 1].strip()
    alike = [n for n in _lines_of_functions(text)[function] if n <= line and rows[n - 1].strip() == old]
    mutant = Mutant(file, line, function, old, new, len(alike))
    try:
        changed = ast.parse(apply(read(str(mutant)), text))
    except (ValueError, SyntaxError):
        return []
    return [mutant] if ast.dump(changed) != ast.dump(ast.parse(text)) else []


Kinds = dict[str, list[tuple[str, str]]]
"""For each kind of mutation: (function, the line's new text without indentation)."""


def mutations_of(text: str) -> dict[int, Kinds]:
    """Return all mutations of a file, by the number of the line that they change.

    >>> mutations_of("def f(x):\\n    return x < 8\\n")
    {2: {'bound': [('f', 'return x <= 8')], 'constant': [('f', 'return x < 9'), ('f', 'return x < 7')]}}
    """
    rows = [row.encode() for row in text.splitlines()]
    lines: dict[int, Kinds] = defaultdict(lambda: defaultdict(list))
    for name, function in _functions(ast.parse(text)):
        finder = _Finder(rows, function)
        for statement in function.body:
            finder.visit(statement)
        for line, start, end, kind, replacement in finder.edits:
            row = rows[line - 1]
            changed = row[:start] + replacement.encode() + row[end:]
            lines[line][kind].append((name, changed.decode().strip()))
    return {line: dict(lines[line]) for line in sorted(lines)}


SIGNS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
BOUNDS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}


class _Finder(ast.NodeVisitor):
    """Finds the mutations in a function's body; those of functions inside it are found by other finders.

    An edit is (line, first byte, end, kind, replacement).
    """

    def __init__(self, rows: list[bytes], function: ast.FunctionDef | ast.AsyncFunctionDef):
        self.rows, self.function = rows, function
        self.edits: list[tuple[int, int, int, str, str]] = []
        self.first_bound = {a.arg: 0 for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.first_bound[node.id] = min(self.first_bound.get(node.id, node.lineno), node.lineno)

    # -- edits

    def _replace(self, node: ast.expr | ast.stmt, kind: str, *replacements: str) -> None:
        """Replace a whole node, if it is on one line."""
        if node.lineno == node.end_lineno:
            self.edits += [(node.lineno, node.col_offset, node.end_col_offset or 0, kind, r) for r in replacements]

    def _between(self, left: ast.expr, right: ast.expr, kind: str, old: str, new: str) -> None:
        """Replace the operator between two expressions, if it is on the line where the right one begins."""
        start = (left.end_col_offset or 0) if left.end_lineno == right.lineno else 0
        at = self.rows[right.lineno - 1].find(old.encode(), start, right.col_offset)
        if at >= 0:
            self.edits.append((right.lineno, at, at + len(old), kind, new))

    def _negate(self, test: ast.expr) -> None:
        """Replace a condition by its negation; `visit_UnaryOp` does it if the condition is one."""
        if test.lineno == test.end_lineno and not isinstance(test, ast.UnaryOp):
            text = self.rows[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            self._replace(test, "condition", f"not ({text})")

    # -- statements

    def visit(self, node: ast.AST) -> None:
        """Find the mutations of a node and of what is below it."""
        if isinstance(node, ast.Continue | ast.Break):
            self._replace(node, "drop", "pass")
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            self._negate(node.test)
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Another finder's."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Another finder's."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Code outside functions; other finders find the methods."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace(node, "drop", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [n for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        if all(self.first_bound[n.id] < node.lineno for n in names if isinstance(n.ctx, ast.Store)):
            self._replace(node, "drop", "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "drop", "pass")
        old, new = SIGNS.get(type(node.op), ("", ""))
        if old:
            self._between(node.target, node.value, "sign", f"{old}=", f"{new}=")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node is not self.function.body[-1]:
            self._replace(node, "drop", "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if ast.unparse(node) != "raise NotImplementedError":  # methods that subclasses define
            self._replace(node, "drop", "pass")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    # -- expressions

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12, the tree does not say where the parts of an f-string stand."""

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            self.visit(node.args[0])  # `A | B` is a type
        elif isinstance(node.func, ast.Name) and node.func.id == "cast":
            self.visit(node.args[1])
        else:
            self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, "constant", str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, "constant", str(node.value + 1), *([str(node.value - 1)] if node.value else []))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
            for side in (node.left, node.right)
        )
        if type(node.op) in SIGNS and not text:
            self._between(node.left, node.right, "sign", *SIGNS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        line, at = node.lineno, node.col_offset
        if isinstance(node.op, ast.USub):
            self.edits.append((line, at, at + 1, "sign", ""))
        elif isinstance(node.op, ast.Not):
            self.edits.append((line, at, at + len("not "), "condition", ""))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, "condition", old, new)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            self._between(left, right, "bound", *BOUNDS[type(op)])
        self.generic_visit(node)
