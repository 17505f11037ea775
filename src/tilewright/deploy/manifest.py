"""The manifest of an exported kernel: a JSON file that says what the code takes, where it runs, and what it is.

| key | holds |
|---|---|
| `format`, `version` | the version of this format, of the package that wrote it |
| `name`, `kind` | the kernel's name; "object", "shared" or "ptx" |
| `file`, `bytes`, `sha256` | the code beside it, its size and its hash |
| `machine` | name, `architectures`, `features` that the code needs; `triple` as LLVM says it |
| `arguments` | in order: `name`, `type`, `shape`, `role`, `alignment`; when it is read: `bound` (once), `called` |
| `sizes` | in order, those that a call tells: `name`, `symbol`, `least`, `most`, `step` |
| `alignment`, `kept_bytes`, `workspace_bytes`, `workers` | of memory that the caller lends; null where sizes tell them |
| `errors` | the sentence of each code that the functions return |
| `signature`, `outputs`, `optional`, `lenient` | what calls from Python are checked against: the head of the tile program, the arguments that are written, those of them that a call may leave out |
| `plan` | the text of the plan |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.codegen.entry.abi import FORMAT
from tilewright.errors import ManifestError
from tilewright.limits import written

_KEYS: dict[str, type | tuple[type, ...]] = {
    "version": str,
    "name": str,
    "kind": str,
    "file": str,
    "bytes": int,
    "sha256": str,
    "machine": dict,
    "arguments": list,
    "sizes": list,
    "errors": dict,
    "signature": str,
    "outputs": list,
    "optional": list,
    "lenient": bool,
    "plan": str,
}
"""What every manifest has, and as what; each kind of code has more."""


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
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as fault:
        raise ManifestError(f"{place} is no JSON, or cut off ({fault}); export the kernel again") from None
    if not isinstance(found, dict) or "format" not in found:
        raise ManifestError(f"{place} is no manifest of an exported kernel")
    if found["format"] != FORMAT:
        raise ManifestError(
            f"{place} has the format {written(found['format'], 40)}, written by version "
            f"{written(found.get('version'), 40)}; this version reads format {FORMAT}: export the kernel again"
        )
    for key, kind in _KEYS.items():
        if not isinstance(found.get(key), kind):
            raise ManifestError(f"{place}: {key} = {written(found.get(key), 60)} is not what it should be")
    return found


def read_code(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """The code of a manifest; raises where the file is not the one that was written."""
    place = manifest_path(path).parent / manifest["file"]
    try:
        data = place.read_bytes()
    except OSError as fault:
        raise ManifestError(f"{place}: {fault.strerror}; the manifest names it: copy both files") from None
    if len(data) != manifest["bytes"]:
        raise ManifestError(
            f"{place} has {len(data)} bytes, and its manifest says {manifest['bytes']}: it is cut off, or another "
            "file; export the kernel again"
        )
    if digest(data) != manifest["sha256"]:
        raise ManifestError(f"{place} was changed after it was written: its hash is not the manifest's; export it again")
    return data
