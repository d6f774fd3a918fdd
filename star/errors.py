"""The errors that star shows to its users: what went wrong, where, and how to mend it."""

from __future__ import annotations


class StarError(Exception):
    """A failure a person can act on.

    `what` names the fault and its place; `fix` is one sentence that says what to do. The command line prints both on one
    line and ends with `exit_code`.
    """

    exit_code = 1

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}. {self.fix}" if self.fix else self.what


class UsageError(StarError):
    """The request itself is wrong: an unknown option, key, split or plugin name."""

    exit_code = 2


class DataError(StarError):
    """A file on disk is not what it should be; `what` starts with `file:line`."""


class ManifestError(StarError):
    """A run directory refuses: tampered input, other recipe, missing artifact, concurrent writer."""


class CollapseError(StarError):
    """Training stopped itself because continuing would waste the user's time."""
