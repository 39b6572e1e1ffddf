"""Fixtures that tests of several rooms share."""

from browsers import browser

__all__ = ["browser"]
