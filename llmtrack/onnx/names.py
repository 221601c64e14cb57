"""Names of what our graphs have beside what any exported decoder has."""

LOGITS_TO_KEEP = "logits_to_keep"
"""Optional input: logits of so many last positions are computed; 0: of all."""

LAST, TOTAL, COS, SIN = "tokens.last", "tokens.total", "rotary.cos", "rotary.sin"
"""Where no row has pads, in place of mask and positions: last place of each row, number of places, angles by place."""

IN_PLACE = "cache_in_place"
"""Property of a graph: its past and its present may be one and the same buffer, longer than what was read."""

GRAPH_OPTIMIZATIONS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}
"""How much of a graph is rewritten on loading: ONNX Runtime's level by the name that it can be asked for."""
