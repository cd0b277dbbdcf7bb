"""What a page of Markdown holds: blocks of code and what is said about them, headings, links."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *sorted(DOCS.glob("*.md"))]

SHELL = ("sh", "bash", "console")
# Other spellings of languages that are run: their blocks would not be run.
MISSPELT = ("py", "python3", "pycon", "shell", "zsh", "shell-session", "")

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([\w+-]*).*$")
_COMMENT = re.compile(r"<!--\s*(not run|prints):\s*(.*?)\s*-->", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: of its opening fence, from 1.
        language: the word behind the fence.
        code: without the fence's own indent.
        not_run: the reason that a comment before it gives, if there is one.
        prints: what a comment before it says that the output contains.
        printed: the text of a `text` block that follows a python block with nothing between.
    """

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None = None
    prints: tuple[str, ...] = ()
    printed: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"

    @property
    def is_python(self) -> bool:
        return self.language == "python"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL


def read_page(page: Path) -> tuple[list[Block], str]:
    """All fenced blocks of a page in their order, and its prose: the page with blanks for them.

    Raises:
        ValueError: a fence is never closed, or a comment about a block stands before none.
    """
    blocks: list[Block] = []
    prose: list[str] = []
    since = 0  # the line of prose that follows the last block
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if not opening:
            prose.append(lines[number])
            number += 1
            continue
        end = _end_of(lines, number, opening)
        if end is None:
            raise ValueError(f"{page.name}, line {number + 1}: this fence is never closed")
        between = "\n".join(prose[since:])
        code = "\n".join(_without_indent(lines[number + 1 : end], len(opening[1])))
        language = opening[3]
        if language == "text" and blocks and blocks[-1].is_python and not between.strip():
            blocks[-1] = replace(blocks[-1], printed=code)
        blocks.append(Block(page, number + 1, language, code + "\n", *_said_before(between)))
        prose.extend([""] * (end + 1 - number))
        since = len(prose)
        number = end + 1
    said = [block for block in blocks if block.is_python or block.is_shell]
    heard = sum((block.not_run is not None) + len(block.prints) for block in said)
    if heard != len(_COMMENT.findall("\n".join(prose))):
        raise ValueError(
            f"{page.name}: a comment `not run` or `prints` stands on a line of its own, right "
            "before a block of python or sh"
        )
    return blocks, "\n".join(prose)


def _end_of(lines: list[str], start: int, opening: re.Match[str]) -> int | None:
    mark = opening[2]
    for number in range(start + 1, len(lines)):
        word = lines[number].strip()
        if len(word) >= len(mark) and set(word) == {mark[0]}:
            return number
    return None


def _without_indent(lines: list[str], indent: int) -> list[str]:
    return [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines]


def _said_before(between: str) -> tuple[str | None, tuple[str, ...]]:
    """The reason not to run and what is printed, of the comments that end a piece of prose."""
    reason, prints = None, []
    while match := re.search(r"(?:^|\n) *(<!--(?:(?!-->).)*-->)\s*$", between, re.DOTALL):
        said = _COMMENT.fullmatch(match[1])
        if said is None:
            break
        text = " ".join(said[2].split())
        if said[1] == "not run":
            reason = text
        else:
            prints.append(text)
        between = between[: match.start()]
    return reason, tuple(reversed(prints))


def links(prose: str) -> list[str]:
    """Where a page's links lead to."""
    plain = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", prose, flags=re.DOTALL)
    return _LINK.findall(plain) + _REFERENCE.findall(plain)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    counts: dict[str, int] = {}
    made = set()
    for heading in _HEADING.findall(read_page(page)[1]):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[`*]", "", plain).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = counts.get(slug, 0)
        counts[slug] = times + 1
        made.add(f"{slug}-{times}" if times else slug)
    return made


def shell_of_console(code: str) -> str:
    """The commands of a `console` block, whose lines begin with `$ `; the rest is output."""
    lines: list[str] = []
    goes_on = False
    for line in textwrap.dedent(code).splitlines():
        if line.startswith("$ ") or goes_on:
            lines.append(line.removeprefix("$ ") if not goes_on else line)
            goes_on = line.endswith("\\")
    return "\n".join(lines) + "\n"
