"""Lets pages of the site link to files of the repository that are outside `docs`.

Pages link to reports, model cards and tests by relative paths (`../bench/results/x.md`), which work
in the repository. The site gets a copy of each file that a page links to, under `repository/`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "repository"
LINK = re.compile(r"(\]\(\s*)([^)\s#]+)(#[^)\s]*)?(\s*\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, directly or by another such page."""
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    waiting.append(ROOT / "CHANGELOG.md")
    _add(files, config, ROOT / "CHANGELOG.md")
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            is_new = not target.is_relative_to(ROOT / "docs") and _add(files, config, target)
            if is_new and target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their copies in the site."""
    source = _source_of(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = _resolved(source, link[2])
        if target is None:
            return link[0]
        uri = _uri_of(target)
        if files.get_file_from_path(uri) is None:  # for example a folder, which has no page
            return link[0]
        path = os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent)
        return f"{link[1]}{path}{link[3] or ''}{link[4]}"

    return LINK.sub(rewritten, markdown)


def _targets(page: Path) -> list[Path]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = (_resolved(page, link[2]) for link in LINK.finditer(text))
    return [target for target in targets if target is not None]


def _resolved(page: Path, link: str) -> Path | None:
    """The file of the repository that a link leads to; None for a URL or a folder."""
    if re.match(r"[a-z]+:", link):
        return None
    target = (page.parent / link).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def _add(files: Files, config: MkDocsConfig, target: Path) -> bool:
    uri = _uri_of(target)
    if files.get_file_from_path(uri) is not None:
        return False
    files.append(File.generated(config, uri, abs_src_path=str(target)))
    return True


def _uri_of(target: Path) -> str:
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    return f"{FOLDER}/{target.relative_to(ROOT).as_posix()}"


def _source_of(uri: str) -> Path:
    inside = PurePosixPath(uri)
    if inside.parts[0] == FOLDER:
        return ROOT / PurePosixPath(*inside.parts[1:])
    return ROOT / "docs" / inside
