"""Compare the surface with its files, or write them: python -m tests.surface [--write]."""

from __future__ import annotations

import sys

from tests.surface.files import FILES, FOLDER, difference, text_of

if __name__ == "__main__":
    wrong = False
    for name in FILES:
        if sys.argv[1:] == ["--write"]:
            (FOLDER / name).write_text(text_of(name), encoding="utf-8", newline="\n")
        elif lines := difference(name):
            wrong = True
            print(lines)
    sys.exit(wrong)
