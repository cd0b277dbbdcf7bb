"""The runner of the documents' code sees what is wrong in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import anchors, links, read_page, shell_of_console
from tests.docs.parsing import check_python, commands, parse


def page_of(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_know_their_line_and_what_is_said_of_them(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        "# A page\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n- a list\n\n"
        "  <!-- not run: it takes\n  a cluster -->\n  ```sh\n  flowvec doctor\n  ```\n\n"
        "<!-- prints: 2 -->\n<!-- prints: 3 -->\n```python\nprint(23)\n```\n\n"
        "and\n\n```text\n23\n```\n",
    )
    first, output, listed, second, other = read_page(page)[0]
    assert (first.line, first.code, first.printed) == (3, "print(1)\n", "1")
    assert (first.not_run, output.language) == (None, "text")
    assert (listed.not_run, listed.code) == ("it takes a cluster", "flowvec doctor\n")
    assert (second.prints, second.printed, second.not_run) == (("2", "3"), None, None)
    assert other.code == "23\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run: it takes hours -->\nSome words.\n\n```sh\nfalse\n```\n",
        "<!-- not run: it takes hours -->\n\n```json\n{}\n```\n",
        "```sh\ntrue\n```\n\n<!-- prints: nothing -->\n",
        "```sh\ntrue\n",
    ],
)
def test_a_comment_about_no_block_and_an_open_fence_are_refused(tmp_path, text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md"):
        read_page(page_of(tmp_path, text))


def test_commands_of_a_script_are_found() -> None:
    script = """
    # flowvec is not called here
    cd x && FLOWVEC_CACHE=c flowvec tune mini   # why
    cut -f 2 t.tsv | flowvec encode mini - \\
        -o v.npy 2> /dev/null
    for i in 1 2; do flowvec verify "a b"; done
    flowvec search notes 'two
    lines' > out.txt &
    echo flowvec
    """
    assert list(commands(script)) == [
        ["tune", "mini"],
        ["encode", "mini", "-", "-o", "v.npy"],
        ["verify", "a b"],
        ["search", "notes", "two\n    lines"],
    ]


def test_the_command_line_takes_and_refuses() -> None:
    parse(["encode", "mini", "texts.txt", "-o", "v.npy"])
    parse(["bench", "--help"])
    for words, told in (
        (["encode", "mini", "texts.txt", "--oot", "v.npy"], "--oot"),
        (["encode", "mini"], "INPUT"),
        (["encode", "mini", "a.txt", "--rows-per-shard", "0"], "rows-per-shard"),
        (["encod", "mini"], "encod"),
        (["bench", "thruput"], "thruput"),
        (["search", "notes", "a", "b"], "unexpected"),
    ):
        with pytest.raises(ValueError, match=told):
            parse(words)


def test_python_that_is_not_run_is_compiled_and_its_imports_looked_up() -> None:
    check_python("import spark\nfrom flowvec import Encoder\nfrom flowvec.bulk import options", "x")
    with pytest.raises(ImportError, match="Encodar"):
        check_python("def f():\n    from flowvec import Encodar", "x")
    with pytest.raises(ImportError, match="nothing"):
        check_python("import flowvec.nothing", "x")
    with pytest.raises(SyntaxError):
        check_python("f(", "x")


def test_links_and_anchors(tmp_path: Path) -> None:
    page = page_of(
        tmp_path,
        "# Kill `it`, twice: [a link](x.md)\n\n## 8 bits\n\n## 8 bits\n\n"
        "[a](b.md#c) and [d\ne](f.md)\n\n"
        "```sh\n# no heading [x](y)\n```\n\n`[no](link)` [r]\n\n[r]: g.md\n",
    )
    assert anchors(page) == {"kill-it-twice-a-link", "8-bits", "8-bits-1"}
    assert links(read_page(page)[1]) == ["x.md", "b.md#c", "f.md", "g.md"]


def test_a_console_block_is_its_commands() -> None:
    assert shell_of_console("$ one \\\n  two\nan answer\n$ three\n") == "one \\\n  two\nthree\n"
