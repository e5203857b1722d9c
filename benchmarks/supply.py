"""What Intarsia is made of, and what a release consists of: `python -m benchmarks.supply COMMAND`.

licences     write docs/trust/licences.md: every package that an installation brings, with its licence
lowest       print the lowest versions of the direct dependencies, as constraints for pip (`make test-lowest`)
release      build wheel and sdist into dist/, the same bytes every time, with SHA256SUMS and sbom.cdx.json
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LICENCES = ROOT / "docs" / "trust" / "licences.md"
EXTRAS = ("flower", "pandas", "parquet", "onnx")
"""What users may install; tools of developers are not part of a release."""
LONGEST = 60
"""Licences written as a whole text are not names."""


def project() -> dict[str, Any]:
    """Return what pyproject.toml says of the package."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def direct(extras: Iterable[str] = EXTRAS) -> list[Requirement]:
    """Return the packages that pyproject.toml names, with those of some extras."""
    about = project()
    texts = [*about["dependencies"], *(t for e in extras for t in about["optional-dependencies"][e])]
    return [Requirement(text) for text in texts]


def installed() -> list[metadata.Distribution]:
    """Return every package that these bring, as it is installed here, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(requirement, "") for requirement in direct()]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            own = found.get(name) or metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        new = name not in found
        found[name] = own
        if new or requirement.extras:
            inner = [Requirement(text) for text in own.requires or ()]
            waiting += [(each, e) for each in inner for e in ("", *requirement.extras)]
    return [found[name] for name in sorted(found)]


def licence_of(package: metadata.Distribution) -> str:
    """Return the licence that a package declares: an expression, a classifier, or its own short words."""
    about = package.metadata
    classified = [
        c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License ::")
    ]
    stated = _field(package, "License").strip()
    short = stated if stated and len(stated) <= LONGEST and "\n" not in stated else ""
    return _field(package, "License-Expression") or ", ".join(classified) or short or "not declared"


def _field(package: metadata.Distribution, name: str) -> str:
    return str(package.metadata[name]) if name in package.metadata else ""


def licences() -> str:
    """Return the page that names them."""
    rows = [f"| {p.metadata['Name']} | {p.version} | {licence_of(p)} |" for p in installed()]
    lines = [
        "# Licences of what an installation brings",
        "",
        f"Made by `python -m benchmarks.supply licences` from what the packages say of themselves, with the extras "
        f"{', '.join(EXTRAS)}; do not edit. Intarsia itself is under {project()['license']}.",
        "",
        "| package | version | licence |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def lowest() -> list[str]:
    """Return the lowest version that pyproject.toml lets in of each direct dependency."""
    pinned = []
    for requirement in direct():
        least = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
        if not least:
            raise SystemExit(f"pyproject.toml gives no lower bound for {requirement.name}")
        pinned.append(f"{requirement.name}=={least[0]}")
    return pinned


def sbom(version: str) -> dict[str, Any]:
    """Return a bill of materials as CycloneDX 1.5 writes it."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component("intarsia", version, project()["license"], "application")},
        "components": [_component(p.metadata["Name"], p.version, licence_of(p)) for p in installed()],
    }


def _component(name: str, version: str, licence: str, kind: str = "library") -> dict[str, Any]:
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    named = {"licenses": [{"license": {"name": licence}}]}
    return {"type": kind, "name": name, "version": version, "bom-ref": purl, "purl": purl, **named}


def release(out: Path, source: Path = ROOT) -> list[Path]:
    """Build what is published into a folder; the same source gives the same bytes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "source"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*IGNORED))
        moment = _moment(source)
        for hook in ("build_wheel", "build_sdist"):
            code = f"import setuptools.build_meta as b; b.{hook}({str(out)!r})"
            environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment), "PYTHONHASHSEED": "0"}
            subprocess.run(
                [sys.executable, "-c", code], cwd=copy, env=environment, check=True, capture_output=True
            )
    for path in out.glob("*.tar.gz"):
        path.write_bytes(_repacked(path.read_bytes(), moment))
    (wheel,) = out.glob("*.whl")
    (out / "sbom.cdx.json").write_text(json.dumps(sbom(wheel.name.split("-")[1]), indent=1) + "\n")
    files = sorted(out.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums))
    return sorted(out.iterdir())


IGNORED = (
    ".git",
    ".venv",
    "runs",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    ".envs",
)


def _moment(source: Path) -> int:
    """Return when the source was last committed; without git, a moment that is always the same."""
    told = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=source, capture_output=True, text=True, check=False
    )
    return int(told.stdout) if told.returncode == 0 and told.stdout.strip() else 1_700_000_000


def _repacked(data: bytes, moment: int) -> bytes:
    """Return a packed archive with its files in order, and nothing in it of who packed it and when."""
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:  # noqa: E501  # fmt: skip
        for member in sorted(old.getmembers(), key=lambda m: m.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = moment, 0, 0, "", ""
            member.mode, member.pax_headers = (0o755 if member.mode & 0o100 else 0o644), {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=moment) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General)", re.IGNORECASE)
"""Licences that would bind whoever gives Intarsia on; the Lesser GPL does not."""


def binding() -> Iterator[str]:
    """Return the packages whose licence would bind those who give Intarsia on."""
    for package in installed():
        if COPYLEFT.search(licence_of(package).replace("LGPL", "").replace("Lesser", "")):
            yield f"{package.metadata['Name']}: {licence_of(package)}"


def main(command: str = "") -> None:
    """Do one of the commands."""
    if command == "licences":
        LICENCES.parent.mkdir(parents=True, exist_ok=True)
        LICENCES.write_text(licences())
    elif command == "lowest":
        print("\n".join(lowest()))
    elif command == "release":
        for path in release(ROOT / "dist"):
            print(path)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:2])
