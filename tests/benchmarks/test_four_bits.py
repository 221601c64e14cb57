"""The 4-bit benchmark: its arms are valid recipes, and its text is split."""

from __future__ import annotations

import ast

from benchmarks import four_bits
from llmtrack.quantize.recipe import find_recipe


def test_each_arm_is_a_recipe_with_valid_options():
    for name, options in four_bits.ARMS.values():
        recipe = find_recipe("onnx", name)
        resolved = recipe.resolve_options(tuple({**options, "block_size": 64}.items()))
        assert resolved.items() >= options.items()
        assert resolved["block_size"] == 64


def test_texts_are_cut_at_line_ends_and_short_ones_left_out():
    assert four_bits.chunks(["ab\ncd\nef\ng", "hijklm\n"], 5) == ("ab\ncd\n", "hijklm\n")


def test_the_training_sources_are_modules_of_python():
    first = next(four_bits.sources())
    ast.parse(first)
    assert len(first) > four_bits.CHARACTERS
