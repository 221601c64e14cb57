"""What is compared in 4 bits: the arms are what recipes can be told, and the text is parted."""

from __future__ import annotations

import ast

from benchmarks import four_bits
from llmtrack.quantize.recipe import find_recipe


def test_each_arm_is_a_recipe_with_options_that_it_takes():
    for name, options in four_bits.ARMS.values():
        recipe = find_recipe("onnx", name)
        told = recipe.resolve_options(tuple({**options, "block_size": 64}.items()))
        assert told.items() >= options.items()
        assert told["block_size"] == 64


def test_texts_are_cut_at_ends_of_lines_and_what_is_short_is_left_out():
    found = four_bits.stretches(["ab\ncd\nef\ng", "hijklm\n"], 5)
    assert found == ("ab\ncd\n", "hijklm\n")


def test_the_sources_that_a_model_is_trained_on_are_modules_of_python():
    first = next(four_bits.sources())
    ast.parse(first)
    assert len(first) > four_bits.CHARACTERS
