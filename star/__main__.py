"""`python -m star`."""

from __future__ import annotations

from star.cli import entry

entry()
