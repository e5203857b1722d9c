"""The documentation as a site that needs no network: `python -m benchmarks.site` builds it into site/ (make docs).

Zensical builds the pages of mkdocs.yml, strictly: a dead link or heading is an error. Files of the repository that
pages link to (examples, records) come along as texts. In the end the site is looked through: nothing in it may come
from elsewhere, or lead nowhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILES = "files"
"""The folder of the site for files that are no pages."""
SHIM, OURS = "https://unpkg.com/iframe-worker/shim", "scripts/frame_worker.js"
"""What Zensical fetches so that pages on a disk can be searched, and what does it here."""
LINK = re.compile(r'(?P<before><a\b[^>]*?\bhref=")(?P<to>[^"]*)(?P<after>")')
TAGS = "script|link|img|iframe|source|video|audio|object|embed"
LOADED = re.compile(rf"""<(?:{TAGS})\b[^>]*?\b(?:src|href|data)="?([^"\s>]*)""")
STYLE = re.compile(r"""(?:url\(|@import )['"]?([^'")\s]+)""")


def build(site: Path) -> None:
    """Build the site from nothing; raise if it is not whole."""
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(re.sub(r"\x1b\[[\d;]*m", "", (done.stdout + done.stderr).partition("Traceback")[0]))
    for page in site.rglob("*.html"):
        page.write_text(bring_files(page, site))
    faults = [*foreign(site), *dead(site)]
    if faults:
        raise SystemExit("\n".join(["the site is not whole:", *faults]))


def pages(site: Path) -> Iterator[Path]:
    """Yield the pages of the site, but the one that stands for those that are not there."""
    return (page for page in sorted(site.rglob("*.html")) if page.name != "404.html")


def bring_files(page: Path, site: Path) -> str:
    """Return a page whose links to files of the repository, and whose scripts, lead to copies in the site."""
    home = DOCS / page.parent.relative_to(site)

    def mended(link: re.Match[str]) -> str:
        source = (home / unquote(link["to"]).partition("#")[0]).resolve()
        if urlsplit(link["to"]).scheme or DOCS in (source, *source.parents) or not source.is_file():
            return link[0]
        copy = site / FILES / f"{source.relative_to(ROOT)}.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        return f"{link['before']}{os.path.relpath(copy, page.parent)}{link['after']}"

    return LINK.sub(mended, page.read_text().replace(SHIM, os.path.relpath(site / OURS, page.parent)))


def foreign(site: Path) -> Iterator[str]:
    """Yield what pages and styles would fetch from elsewhere."""
    for pattern, ending in ((LOADED, "html"), (STYLE, "css")):
        for file in sorted(site.rglob(f"*.{ending}")):
            for source in pattern.findall(file.read_text()):
                if source.startswith("//") or urlsplit(source).scheme not in ("", "data"):
                    yield f"{file.relative_to(site)}: fetches {source}"


def dead(site: Path) -> Iterator[str]:
    """Yield links of pages that lead nowhere in the site."""
    for page in pages(site):
        for link in LINK.finditer(page.read_text()):
            parts = urlsplit(unquote(link["to"]))
            target = page.parent / parts.path if parts.path else page
            if not parts.scheme and not target.exists():
                yield f"{page.relative_to(site)}: {link['to']} is not there"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.parse_args()
    build(ROOT / "site")
    print("open site/index.html")


if __name__ == "__main__":
    main()
