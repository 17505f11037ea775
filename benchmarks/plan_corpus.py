"""The plan corpus: what the planner chooses for thousands of kernels and machines, recorded, so that changes show.

    benchmarks/plan_corpus.py compare                       # plan everything anew: exit status 1 if anything differs
    benchmarks/plan_corpus.py compare --only attention      # entries whose name matches a regular expression
    benchmarks/plan_corpus.py compare --machine hopper --sample 100 --seed 3
    benchmarks/plan_corpus.py pinned --sample 300           # recorded plans, given again: the same block programs?
    benchmarks/plan_corpus.py record                        # write benchmarks/corpus/*.txt anew
    benchmarks/plan_corpus.py list --cliffs 20              # entries far above their roofline

An entry is a kernel with its sizes and a row of `targets` with a number of cores; its name is `MACHINE/CORES KIND:
PROBLEM`. The record holds the plan, the predicted cycles, hashes of the first candidates, of what was refused and of
every block program. It is the same on every CPU. `record` with a selection writes those entries and keeps the others.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

from corpus_entries import LEFT_OUT, entries, sample
from corpus_plans import LIMIT, Planned, pinned_by_name, planned_by_name
from corpus_roofline import cliffs
from corpus_text import Key, Record, differences, read, shown, write

PROGRESS = 30
"""Seconds between two lines that say how far it is."""


def selected(options: argparse.Namespace) -> list[Key]:
    """The entries that the options name."""
    found = [key for key in entries() if re.search(options.only, shown(key))]
    for name in [options.machine] if options.machine else []:
        found = [key for key in found if key[2] == name or key[2].rpartition("/")[0] == name]
    return sample(found, options.sample, options.seed) if options.sample else found


def planned_all(keys: Sequence[Key], jobs: int) -> Iterator[tuple[Key, Planned]]:
    """All entries planned, in their order, by so many processes; says now and then how far it is."""
    start = said = perf_counter()
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(planned_by_name, *zip(*keys, strict=True), chunksize=4) if keys else ()
        for count, (key, entry) in enumerate(zip(keys, found, strict=True), 1):
            if perf_counter() - said >= PROGRESS:
                said = perf_counter()
                print(f"# {count} of {len(keys)}, {said - start:.0f} s: {shown(key)}", file=sys.stderr, flush=True)
            yield key, entry


def record(options: argparse.Namespace) -> int:
    """Writes the entries that are selected, in the order of the list; what is no longer in the list goes."""
    old, keys = read(), selected(options)
    new = dict(planned_all(keys, options.jobs))
    late = [key for key, entry in new.items() if entry.error.startswith("TooLong")]
    write({key: new.get(key) or old[key] for key in entries() if key in new or key in old})
    changed = [key for key in keys if key not in old or list(differences(old[key], new[key]))]
    print(f"{len(new)} entries recorded, {len(changed)} of them new or changed")
    for key in late:
        print(f"more than {LIMIT} s: {shown(key)}")
    return 1 if late else 0


def compare(options: argparse.Namespace) -> int:
    """Plans the entries that are selected anew, and says which differ from the record, and how."""
    old, keys = read(), selected(options)
    everything = not (options.only or options.machine or options.sample)
    gone = sorted(set(old) - set(keys)) if everything else []
    counts: Counter[str] = Counter()
    for key, entry in planned_all(keys, options.jobs):
        lines = list(differences(old[key], entry)) if key in old else ["not recorded"]
        if lines:
            counts.update(
                {"entries": 1, **dict.fromkeys((line.partition(":")[0] for line in lines if line[0] != " "), 1)}
            )
            print(shown(key), *(f"    {line}" for line in lines), sep="\n", flush=True)
    for key in gone:
        print(shown(key), "    recorded, and no longer in the list", sep="\n")
    differing = counts.pop("entries", 0) + len(gone)
    told = ", ".join(f"{what} of {count}" for what, count in counts.items())
    print(f"{differing} of {len(keys) + len(gone)} entries differ{told and f': {told}'}")
    return 1 if differing else 0


def pinned(options: argparse.Namespace) -> int:
    """Plans the entries that are selected, gives each plan as `plan=`, and says which of these make other programs."""
    differing, keys = 0, selected(options)
    with ProcessPoolExecutor(options.jobs) as pool:
        made = pool.map(pinned_by_name, *zip(*keys, strict=True), chunksize=4)
        for key, (chosen, given) in zip(keys, made, strict=True):
            if (given.error, given.programs, given.plan) != (chosen.error, chosen.programs, chosen.plan):
                differing += 1
                print(shown(key), *(f"    {line}" for line in differences(chosen, given)), sep="\n", flush=True)
    print(f"{differing} of {len(keys)} plans that are given again are refused, or make other programs")
    return 1 if differing else 0


def listed(options: argparse.Namespace) -> int:
    """Names the entries, or counts them; or those that take longest, measured by their rooflines."""
    keys = selected(options)
    if options.cliffs:
        for ratio, key, cycles, bound in cliffs(_recorded(keys), options.cliffs):
            print(f"{ratio:9.1f} times {bound:12.0f} cycles: {cycles:14.0f}  {shown(key)}")
    elif options.count:
        for what, counts in (("kind", Counter(k for k, _, _ in keys)), ("machine", Counter(m for _, _, m in keys))):
            print(f"{what}:", *(f"  {count:5} {name}" for name, count in counts.items()), sep="\n")
        failed = Counter(e.error.partition(":")[0] for e in _recorded(keys).values() if e.error)
        print("errors:", *(f"  {count:5} {name}" for name, count in failed.items()), sep="\n")
        print(f"{len(keys)} entries, {len(LEFT_OUT)} left out")
    else:
        print(*map(shown, keys), sep="\n")
        for key, why in LEFT_OUT.items():
            print(f"left out: {shown(key)}: {why}")
    return 0


def _recorded(keys: Sequence[Key]) -> Record:
    old = read()
    return {key: old[key] for key in keys if key in old}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare", "pinned", "list"))
    parser.add_argument("--only", default="", help="a regular expression that an entry's name matches")
    parser.add_argument("--machine", default="", help="such as hopper, x86.amx or x86.amx/16")
    parser.add_argument("--sample", type=int, default=0, help="so many of the entries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--cliffs", type=int, default=0, help="list: so many entries with the worst ratio to a roofline"
    )
    parser.add_argument("--count", action="store_true", help="list: how many entries there are of each kind")
    options = parser.parse_args()
    if not selected(options):
        parser.error("no entry is selected; `list` names them all")
    sys.exit({"record": record, "compare": compare, "pinned": pinned, "list": listed}[options.what](options))


if __name__ == "__main__":
    main()
