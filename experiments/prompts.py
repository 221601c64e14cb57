"""Prompts of the experiments; written for this project."""

DEFAULT_PROMPT = (
    "A small bakery wants to answer its customers' questions with a language model that runs on the "
    "computer behind the counter. The first thing to find out is"
)

BASE_TEXT = (
    "The harbour wakes before the town does. Boats come in with the tide, their holds full of herring, and "
    "the market fills with voices that know the price of everything. By noon the crates are gone, the quay is "
    "washed, and the gulls argue over what is left."
)

# Eight requests of unequal length, as a server receives them.
UNEQUAL_PROMPTS = (
    "Name three uses for an empty jar.",
    "The night train from the coast was late again, and the only other passenger on the platform was",
    "Explain to a child why the moon seems to follow the car when we drive home in the evening.",
    "Dear neighbours,",
    "A recipe for bread needs flour, water, salt and time. First, mix the flour with the water and let it rest "
    "for half an hour. Then add the salt, fold the dough over itself four times, and cover it. After that",
    "def mean(values):",
    "Minutes of the meeting of the garden club. Present: six members. The treasurer reported that the new shed "
    "had cost less than planned, and proposed to spend the rest on",
    "What is the difference between a lake and a pond?",
)
