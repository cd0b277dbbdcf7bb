"""What the page marks in the text of a hit: the words that a search has found."""

# ruff: noqa: RUF001 - letters of other scripts
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from flowvec.texts.folding import words_of

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.page import __file__ as page

pytestmark = pytest.mark.process

NODE = shutil.which("node")
TEXTS = [
    "Crème brûlée à la façon Łódź oﬃce STRASSE straße İstanbul ısı",
    "Новый ёж пьёт чай. Їжак, за\u0301мок и й",
    "Η Αθήνα είναι ωραία, όσος ΟΣΟΣ",
    "שָׁלוֹם לָעוֹלָם",
    "السَّلامُ عليكم أحمد محـــمد",
    "यह किताब अच्छी है",
    "ภาษาไทย น้ำ",
    "한국어를 공부합니다 ﾃﾞｰﾀ ガラス",
    "co\u00adoperate x² ＯＦＦＩＣＥ",
]
MARKS = [
    ("the IT department", "IT support", ["IT"]),
    ("the cat is in the house", "what is the cat", ["cat"]),
    ("यह किताब अच्छी है", "किताब", ["किताब"]),
    ("कुतुब मीनार", "किताब", []),
    ("un cafe\u0301 noir", "CAFÉ", ["cafe\u0301"]),
    ("a co\u00adoperative shop", "cooperative", ["co\u00adoperative"]),
    ("ёлка", "елка", ["ёлка"]),
    ("東京の天気は晴れです", "天気", ["天気"]),
    ("新しいカ\u3099ラス窓", "ガラス", ["カ\u3099ラス"]),
]
SCRIPT = r"""
import { folded, marked } from "./text.js";
import { readFileSync } from "node:fs";
const { texts, marks } = JSON.parse(readFileSync("given.json", "utf8"));
console.log(JSON.stringify({
  words: texts.map((text) => folded(text).match(/[\p{L}\p{N}\p{M}_]+/gu)),
  marks: marks.map(([text, query]) => {
    const parts = marked(text, query);
    const inner = (part) => [part.props.children].flat().join("");
    const whole = parts.map((part) => typeof part === "string" ? part : inner(part)).join("");
    return [whole, parts.filter((part) => typeof part !== "string").map(inner)];
  }),
}));
"""


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_words_are_folded_and_marked_as_the_search_finds_them(tmp_path: Path) -> None:
    assert NODE is not None
    static = Path(page).parent / "static"
    shutil.copytree(static / "vendor", tmp_path / "vendor")
    shutil.copy(static / "text.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "run.js").write_text(SCRIPT)
    given = {"texts": TEXTS, "marks": [[text, query] for text, query, _ in MARKS]}
    (tmp_path / "given.json").write_text(json.dumps(given))
    done = subprocess.run(
        [NODE, "run.js"], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=600
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["words"] == [words_of(text) for text in TEXTS]
    assert shown["marks"] == [[text, marks] for text, _, marks in MARKS]
