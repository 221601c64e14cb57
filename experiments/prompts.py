"""The texts that experiments prompt with; written for this project."""

DEFAULT_PROMPT = (
    "A small bakery wants to answer its customers' questions with a language model that runs on the "
    "computer behind the counter. The first thing to find out is"
)

BASE_TEXT = (
    "The harbour wakes before the town does. Boats come in with the tide, their holds full of herring, and "
    "the market fills with voices that know the price of everything. By noon the crates are gone, the quay is "
    "washed, and the gulls argue over what is left."
)
