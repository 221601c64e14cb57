"""Tracked runs as they are read back: typed once by `tracking/`, and plain data for all that decides and reports."""

from __future__ import annotations
