"""`python -m flowvec` is the command `flowvec`."""

from __future__ import annotations

from flowvec.cli.main import main

main()
