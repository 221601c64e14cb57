"""Names of our graphs' inputs and properties, and of ONNX Runtime's optimization levels; imports no library."""

import re

PAST = re.compile(r"past_key_values\.\d+\.(key|value)")
"""Inputs: cached keys and values of each layer, (rows, heads, tokens, width)."""

LOGITS_TO_KEEP = "logits_to_keep"
"""Optional input: number of last positions whose logits are computed; 0: all."""

LAST, TOTAL, COS, SIN = "tokens.last", "tokens.total", "rotary.cos", "rotary.sin"
"""Inputs that replace mask and positions if no row has pads: last slot per row, number of slots, angles by slot."""

IN_PLACE = "cache_in_place"
"""Graph property: past and present may share one buffer, longer than the tokens read."""

GRAPH_OPTIMIZATIONS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
"""ONNX Runtime's graph optimization levels by option value."""
