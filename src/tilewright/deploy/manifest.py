"""The manifest of an exported kernel: a JSON file that says what the code takes, where it runs, and what it is.

| key | holds |
|---|---|
| `format`, `version` | the version of this format, of the package that wrote it |
| `name`, `kind` | the kernel's name; "object", "shared", "ptx" or "cubin" |
| `file`, `bytes`, `sha256` | the code beside it, its size and its hash |
| `machine` | name, `architectures`, `features` that the code needs; `triple` as LLVM says it |
| `arguments` | in order: `name`, `type`, `shape`, `role`, `alignment`; when it is read: `bound` (once), `called` |
| `sizes` | in order, those that a call tells: `name`, `symbol`, `least`, `most`, `step` |
| `alignment`, `kept_bytes`, `workspace_bytes`, `workers` | of memory that a caller lends; null where sizes tell them |
| `errors` | the sentence of each code that the functions return |
| `signature`, `outputs`, `optional`, `lenient` | what calls from Python are checked against |
| `tvm_ffi` | of code for a CPU: the symbol that TVM-FFI looks for, or null |
| `plan` | the text of the plan |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.codegen.entry.abi import FORMAT
from tilewright.errors import ManifestError
from tilewright.limits import written

COMMON: dict[str, Any] = {
    "version": str,
    "name": str,
    "kind": str,
    "file": str,
    "bytes": int,
    "sha256": str,
    "machine": {"name": str, "features": [str]},
    "arguments": [{"name": str, "type": str, "shape": [(int, str)], "role": str, "alignment": int}],
    "sizes": [{"name": str, "symbol": str, "least": int, "most": int, "step": int}],
    "errors": {},
    "signature": str,
    "outputs": [str],
    "optional": [str],
    "lenient": bool,
    "plan": str,
}
"""The keys of every manifest: types, lists of what is in them, dictionaries with the keys they must have."""
OF_CPUS: dict[str, Any] = {
    "machine": {"architectures": [str], "triple": str},
    "arguments": [{"bound": bool, "called": bool}],
    "alignment": int,
    "kept_bytes": (int, type(None)),
    "workspace_bytes": (int, type(None)),
    "workers": int,
}
"""The further keys of a manifest of code for a CPU."""


DEEPEST = 100
"""Brackets within brackets, at most, of what is read as a manifest."""
OF_GPUS: dict[str, Any] = {
    "machine": {"maker": str, "cores": int},
    "host": str,
    "programs": [
        {
            "name": str,
            "file": str,
            "bytes": int,
            "sha256": str,
            "head": str,
            "launch": {"entry": str},
            "conditions": [[str]],
        }
    ],
}
"""The further keys of a manifest of code for a GPU."""
KINDS = {"object": OF_CPUS, "shared": OF_CPUS, "ptx": OF_GPUS, "cubin": OF_GPUS}


def misfit(value: Any, form: Any, where: str) -> str | None:
    """The place in a manifest where a value has not the form it should have; None where all of it has.

    >>> misfit({"a": [1, "x"]}, {"a": [int]}, "m")
    "m.a[1] = 'x'"
    """
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{where} = {written(value, 60)}"
        parts = [(value.get(key), inner, f"{where}.{key}".removeprefix(".")) for key, inner in form.items()]
    elif isinstance(form, list):
        if not isinstance(value, list):
            return f"{where} = {written(value, 60)}"
        parts = [(each, form[0], f"{where}[{place}]") for place, each in enumerate(value)]
    else:
        fits = isinstance(value, form) and (not isinstance(value, bool) or form is bool)
        return None if fits else f"{where} = {written(value, 60)}"
    return next(filter(None, (misfit(*part) for part in parts)), None)


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """A manifest as it is written."""
    return json.dumps(manifest, indent=1) + "\n"


def digest(data: bytes) -> str:
    """The hash of a file."""
    return hashlib.sha256(data).hexdigest()


def manifest_path(path: Path) -> Path:
    """The manifest of an exported file: it lies beside it."""
    return path if path.suffix == ".json" else path.with_suffix(".json")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a path, read and checked; raises where it is none that this version knows."""
    place = manifest_path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except OSError as fault:
        raise ManifestError(
            f"{place}: {fault.strerror}; an exported kernel has its manifest beside it: copy both files"
        ) from None
    except UnicodeDecodeError:
        raise ManifestError(f"{place} is no text, so it is no manifest; export the kernel again") from None
    try:
        manifest = json.loads(text if _depth(text) < DEEPEST else "")
    except json.JSONDecodeError as fault:
        raise ManifestError(f"{place} is no JSON, or cut off ({fault}); export the kernel again") from None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ManifestError(f"{place} is no manifest of an exported kernel")
    if manifest["format"] != FORMAT:
        raise ManifestError(
            f"{place} has the format {written(manifest['format'], 40)}, written by version "
            f"{written(manifest.get('version'), 40)}; this version reads format {FORMAT}: export the kernel again"
        )
    wrong = misfit(manifest, COMMON, "")
    if wrong is None and manifest["kind"] not in KINDS:
        wrong = f"kind = {written(manifest['kind'], 40)}"
    if wrong is None:
        wrong = misfit(manifest, KINDS[manifest["kind"]], "")
    for row in [manifest, *manifest.get("programs", ())] if wrong is None else ():
        if Path(row["file"]).name != row["file"]:
            wrong = f"file = {row['file']!r}"
    if wrong is not None:
        raise ManifestError(f"{place}: {wrong} is not what a manifest holds there; export the kernel again")
    return manifest


def _depth(text: str) -> int:
    """How deep the brackets of a text are nested."""
    deepest = depth = 0
    for mark in re.findall(r"[\[\]{}]", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def read_code(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """The code of a manifest; raises where the file is not the one that was written."""
    place = manifest_path(path).parent / manifest["file"]
    try:
        data: bytes = place.read_bytes()
    except OSError as fault:
        raise ManifestError(f"{place}: {fault.strerror}; the manifest names it: copy both files") from None
    if len(data) != manifest["bytes"]:
        raise ManifestError(
            f"{place} has {len(data)} bytes, and its manifest says {manifest['bytes']}: it is cut off, or another "
            "file; export the kernel again"
        )
    if digest(data) != manifest["sha256"]:
        raise ManifestError(
            f"{place} was changed after it was written: its hash is not the manifest's; export it again"
        )
    return data
