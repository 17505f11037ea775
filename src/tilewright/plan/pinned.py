"""Errors about a plan that the caller gives: the statement at fault, other sizes than the program's, misspelt names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.errors import ArgumentError
from tilewright.limits import did_you_mean
from tilewright.plan.blocking import LANES
from tilewright.plan.schedule import LAUNCH, Schedule

FRESH = 'without plan=, executable.text("plan") prints the plan for these sizes'
"""The advice at the end of an error: how to get a plan for the program's sizes."""
_PART = re.compile(r"(?:_\d+)?(?:_split|_part)?$")
"""The end of a digit's name (a digit is a mixed-radix part of a dimension): the `_1` of `M_1`, or `_split`, `_part`."""


def quote_lines(
    refusal: ArgumentError, given_plan: Schedule, chosen_plan: Schedule | None, known: Known | None = None
) -> ArgumentError:
    """Return the error `refusal` about `given_plan`, a plan that the caller gave, with the plan's faulty lines quoted.

    A line counts as faulty if `chosen_plan`, the plan that the search chose, does not have it; without a `chosen_plan`,
    every line does. If the error names axes whose lines are faulty, only these are quoted, else all faulty lines. An
    error that already quotes a line is returned as it is; so is one for a plan without faulty lines.

    `known` has the names and sizes that exist. With it and `chosen_plan`, a misspelt name gets a suggestion; a plan for
    other sizes gets an error that says so instead.

    >>> from tilewright.plan.text import parse_plan
    >>> plan = parse_plan("axis m = (m 8): task 3; axis n = (n 9): whole; grid m")
    >>> print(quote_lines(ArgumentError("plan: axis n: no task"), plan, None))
    plan: axis n: no task; in `axis n = (n 9): whole`
    """
    if chosen_plan is not None and known is not None:
        hints = near_name_hints(given_plan, chosen_plan, known)
        wrong_sizes = "" if hints else why_other_sizes(given_plan, chosen_plan, known.sizes)
        if wrong_sizes:
            return ArgumentError(wrong_sizes)
        refusal = ArgumentError(f"{refusal}{hints}") if hints and hints not in str(refusal) else refusal
    text, lines = str(refusal), chosen_plan.lines() if chosen_plan is not None else []
    changed = [line for line in given_plan.lines() if line not in lines]
    if any(line in text for line in given_plan.lines()):
        return refusal
    named_axes = [str(a) for a in given_plan.axes if re.search(rf"axis {a.name}\b", text) and str(a) in changed]
    quoted = named_axes or changed
    return ArgumentError(f"{text}; in `{'`, `'.join(quoted)}`") if quoted else refusal


@dataclass(frozen=True)
class Known:
    """The names that a plan may use: dimensions with their sizes, arguments, and the machine's atoms."""

    sizes: Mapping[str, int]
    arguments: Collection[str]
    atoms: Collection[str]


def why_other_sizes(given_plan: Schedule, chosen_plan: Schedule, sizes: Mapping[str, int]) -> str:
    """Return text: the error for `given_plan` if it is for other sizes than the program's; empty text if sizes agree.

    `sizes` maps the program's dimensions to their extents. An extent in the given plan agrees if it equals the
    program's extent, or the extent in `chosen_plan` (the plan that the search chose), which may be padded. A dimension
    that the plan splits into parts (split-K) always agrees. The text is empty too if the given plan repacks other
    operands than `chosen_plan`, because their copies may have other extents.

    >>> from tilewright.plan.text import parse_plan
    >>> plan, here = (parse_plan(f"axis rows = (m_1 4, m_0 {n}): whole") for n in (128, 125))
    >>> print(why_other_sizes(plan, here, {"M": 500}))
    plan: it is for other sizes: `axis rows = (m_1 4, m_0 128): whole` says m_0 128, the program has m_0 125 ...
    """
    repacked = [[(p.name, p.form) for p in plan.values if p.at == LAUNCH] for plan in (given_plan, chosen_plan)]
    if repacked[0] != repacked[1]:  # on copies dimensions may have other extents than in the program
        return ""
    given_extents, extents = _extents(given_plan), _extents(chosen_plan)
    program = {name.lower(): (name, size) for name, size in sizes.items()}
    faults = []
    for dim, digits in given_extents.items():
        if given_plan.parts is not None and dim == _dim_of(given_plan.parts[0]):  # parts are whole steps
            continue
        total = prod(digits.values())
        name, size = program.get(dim, ("", None))
        if total == size or total == prod(extents.get(dim, {"": total}).values()):
            continue
        if digits.keys() == extents[dim].keys():
            differing = {d: n for d, n in extents[dim].items() if digits[d] != n}
            if (
                size is None and len(differing) == len(digits) == 1
            ):  # a name that the plan of this program gives otherwise
                continue
            whole_dim = f" ({name} {size})" if size is not None and [*differing] != [name] else ""
            stated, has = _digits_text(digits, differing), _digits_text(differing, differing)
            difference = f"says {stated}, the program has {has}{whole_dim}"
        elif size is not None:
            difference = f"says {_digits_text(digits, digits)}, in all {total}, the program has {name} {size}"
        else:
            continue
        lines = [str(a) for a in given_plan.axes if any(d.name in digits for d in a.digits)]
        faults.append(f"`{'`, `'.join(lines)}` {difference}")
    return f"plan: it is for other sizes: {'; '.join(faults)}; {FRESH}" if faults else ""


def _digits_text(digits: Mapping[str, int], names: Iterable[str]) -> str:
    """Return text that lists the digits `names` with their extents, such as "m_1 4, m_0 128".

    Digits are mixed-radix parts of dimensions; `digits` maps their names to extents.
    """
    return ", ".join(f"{name} {digits[name]}" for name in names)


def _extents(plan: Schedule) -> dict[str, dict[str, int]]:
    """Return {dimension: {digit: extent}} for the axes of `plan`; a digit is a mixed-radix part, such as m_1 of m."""
    extents: dict[str, dict[str, int]] = {}
    for digit in (d for axis in plan.axes for d in axis.digits):
        extents.setdefault(_dim_of(digit.name), {})[digit.name] = digit.extent
    return extents


def _dim_of(digit: str) -> str:
    """Return the name of the dimension that a digit (mixed-radix part) belongs to, in lower case: `m` for `M_1`."""
    return _PART.sub("", digit, count=1).lower()


def near_name_hints(given_plan: Schedule, chosen_plan: Schedule, known: Known) -> str:
    """Return text for the end of an error message: "did you mean" for each misspelt name in the given plan.

    A name is misspelt if it does not exist but is similar to one that exists. Names of axes, digits (mixed-radix parts)
    and MMAs exist if `chosen_plan` (the plan that the search chose) has them; arguments and atoms if `known` has them.
    The text is empty if no name is misspelt.

    >>> from tilewright.plan.text import parse_plan
    >>> plan, here = (parse_plan(f"axis {name} = (n 9): whole") for name in ("colums", "columns"))
    >>> print(near_name_hints(plan, here, Known({}, (), ())))
    ; `colums`: did you mean columns?
    """
    digits = [[d.name for a in plan.axes for d in a.digits] for plan in (given_plan, chosen_plan)]
    products = [[p.name for p in plan.products] for plan in (given_plan, chosen_plan)]
    atoms = [
        a for a in (given_plan.atom, *(p.atom for p in given_plan.products)) if a and not a.startswith(f"{LANES}.")
    ]
    pairs: list[tuple[Collection[str], Collection[str]]] = [
        ([a.name for a in given_plan.axes], [a.name for a in chosen_plan.axes]),
        (digits[0], digits[1]),
        (products[0], products[1]),
        ([p.name for p in given_plan.values], known.arguments),
        (atoms, known.atoms),
    ]
    hints = []
    for used, allowed in pairs:
        unused = [name for name in allowed if name not in used]
        hints += [
            f"; `{n}`{hint.replace('; ', ': ')}" for n in used if n not in allowed and (hint := did_you_mean(n, unused))
        ]
    return "".join(dict.fromkeys(hints))
