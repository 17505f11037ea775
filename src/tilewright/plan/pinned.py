"""Plans that are given: which line a refusal means, and hints on other sizes and misspelt names."""

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
"""How a plan is found that is for the sizes at hand."""
_PART = re.compile(r"(?:_\d+)?(?:_split|_part)?$")
"""The end of a digit's name: which digit of its dimension it is."""


def naming(fault: ArgumentError, given: Schedule, chosen: Schedule | None, known: Known | None = None) -> ArgumentError:
    """A refusal of a plan that names the line: the axis it speaks of, and where that is as it would be chosen, what
    differs from the plan that is chosen. A plan for other sizes is refused as that; of names that the program does not
    have, near ones are said.

    >>> from tilewright.plan.text import parse_plan
    >>> plan = parse_plan("axis m = (m 8): task 3; axis n = (n 9): whole; grid m")
    >>> print(naming(ArgumentError("plan: axis n: no task"), plan, None))
    plan: axis n: no task; in `axis n = (n 9): whole`
    """
    if chosen is not None and known is not None:
        hints = near_names(given, chosen, known)
        others = "" if hints else other_sizes(given, chosen, known.sizes)
        if others:
            return ArgumentError(others)
        fault = ArgumentError(f"{fault}{hints}") if hints and hints not in str(fault) else fault
    text, lines = str(fault), chosen.lines() if chosen is not None else []
    changed = [line for line in given.lines() if line not in lines]
    if any(line in text for line in given.lines()):
        return fault
    spoken = [str(a) for a in given.axes if re.search(rf"axis {a.name}\b", text) and str(a) in changed]
    named = spoken or changed
    return ArgumentError(f"{text}; in `{'`, `'.join(named)}`") if named else fault


@dataclass(frozen=True)
class Known:
    """The names that a plan may use: dimensions with their sizes, arguments, and the machine's atoms."""

    sizes: Mapping[str, int]
    arguments: Collection[str]
    atoms: Collection[str]


def other_sizes(given: Schedule, chosen: Schedule, sizes: Mapping[str, int]) -> str:
    """Which sizes a plan says that are neither the program's nor those of the plan chosen for it, which may be padded;
    nothing where all are.

    >>> from tilewright.plan.text import parse_plan
    >>> plan, here = (parse_plan(f"axis rows = (m_1 4, m_0 {n}): whole") for n in (128, 125))
    >>> print(other_sizes(plan, here, {"M": 500}))
    plan: it is for other sizes: `axis rows = (m_1 4, m_0 128): whole` says m_0 128, the program has m_0 125 ...
    """
    copied = [[(p.name, p.form) for p in plan.values if p.at == LAUNCH] for plan in (given, chosen)]
    if copied[0] != copied[1]:  # on copies dimensions may have other extents than in the program
        return ""
    said, here = _extents(given), _extents(chosen)
    program = {name.lower(): (name, size) for name, size in sizes.items()}
    wrong = []
    for dim, digits in said.items():
        if given.parts is not None and dim == _dim_of(given.parts[0]):  # parts are whole steps
            continue
        total = prod(digits.values())
        name, size = program.get(dim, ("", None))
        if total == size or total == prod(here.get(dim, {"": total}).values()):
            continue
        if digits.keys() == here[dim].keys():
            own = {d: n for d, n in here[dim].items() if digits[d] != n}
            if size is None and len(own) == len(digits) == 1:  # a name that the plan of this program gives otherwise
                continue
            more = f" ({name} {size})" if size is not None and [*own] != [name] else ""
            what = f"says {_list(digits, own)}, the program has {_list(own, own)}{more}"
        elif size is not None:
            what = f"says {_list(digits, digits)}, in all {total}, the program has {name} {size}"
        else:
            continue
        lines = [str(a) for a in given.axes if any(d.name in digits for d in a.digits)]
        wrong.append(f"`{'`, `'.join(lines)}` {what}")
    return f"plan: it is for other sizes: {'; '.join(wrong)}; {FRESH}" if wrong else ""


def _list(digits: Mapping[str, int], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {digits[name]}" for name in names)


def _extents(plan: Schedule) -> dict[str, dict[str, int]]:
    """The extents of a plan's digits, by the dimension whose digits they are: `m_1` is one of m."""
    found: dict[str, dict[str, int]] = {}
    for digit in (d for axis in plan.axes for d in axis.digits):
        found.setdefault(_dim_of(digit.name), {})[digit.name] = digit.extent
    return found


def _dim_of(digit: str) -> str:
    return _PART.sub("", digit, count=1).lower()


def near_names(given: Schedule, chosen: Schedule, known: Known) -> str:
    """The end of a refusal: of each name in a plan that its program or machine does not have, a near one.

    >>> from tilewright.plan.text import parse_plan
    >>> plan, here = (parse_plan(f"axis {name} = (n 9): whole") for name in ("colums", "columns"))
    >>> print(near_names(plan, here, Known({}, (), ())))
    ; `colums`: did you mean columns?
    """
    digits = [[d.name for a in plan.axes for d in a.digits] for plan in (given, chosen)]
    products = [[p.name for p in plan.products] for plan in (given, chosen)]
    atoms = [a for a in (given.atom, *(p.atom for p in given.products)) if a and not a.startswith(f"{LANES}.")]
    pairs: list[tuple[Collection[str], Collection[str]]] = [
        ([a.name for a in given.axes], [a.name for a in chosen.axes]),
        (digits[0], digits[1]),
        (products[0], products[1]),
        ([p.name for p in given.values], known.arguments),
        (atoms, known.atoms),
    ]
    found = []
    for said, there in pairs:
        left = [name for name in there if name not in said]
        found += [
            f"; `{n}`{hint.replace('; ', ': ')}" for n in said if n not in there and (hint := did_you_mean(n, left))
        ]
    return "".join(dict.fromkeys(found))
