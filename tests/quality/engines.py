"""Engines whose metrics can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.engines.torch.pytorch import TorchEngine
from tests.engines.models import bigram_engine

LN2 = math.log(2)
A, B = 97, 98
BOS = 256  # of small models, whose other tokens are bytes


def scripted(**changes: Any) -> ScriptedEngine:
    """One token per character, one nat per predicted token."""
    engine = ScriptedEngine(FakeClock(), Script(1.0, 1.0))
    engine._info = replace(engine.info, **changes)
    return engine


def two_letters() -> TorchEngine:
    """After `a`, `a` and `b` have probability 1/2 each; after `b`, `a` has 1/8 and `b` 7/8."""
    table = torch.full((300, 300), -torch.inf)
    table[A, A] = table[A, B] = math.log(1 / 2)
    table[B, A], table[B, B] = math.log(1 / 8), math.log(7 / 8)
    table[BOS, A] = 0.0
    table[256:, B] = math.log(1 / 16)
    return bigram_engine(table)
