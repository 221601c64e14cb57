"""Sizes in bytes by the units that they are told in."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
