"""Parameters of config dataclasses: parsing, validation, formatting and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest

from llmtrack.devices import canonical_dtype
from llmtrack.errors import UsageError
from llmtrack.run.command import click_options
from llmtrack.spec.options import Checked, Option, config_from, parameters, tracked_settings
from llmtrack.spec.parameter import LARGEST, format_value


@dataclass(frozen=True)
class Group(Checked):
    """Options shared by several configs."""

    count: Annotated[int, Option("A count.", min=1)] = 3
    share: Annotated[float, Option("A share.", above=0, below=1)] = 0.5
    uri: Annotated[str | None, Option("A place.", tracked=False)] = None


@dataclass(frozen=True)
class Example(Group):
    """Options of each kind."""

    sizes: Annotated[tuple[int, ...], Option("Sizes.", min=1, max=64)] = (1, 2)
    dtypes: Annotated[tuple[str, ...], Option("Precisions.", read=canonical_dtype)] = ()
    side: Annotated[str, Option("A side.", choices=("left", "right"))] = "left"
    text: Annotated[str | None, Option("A text.", min=1)] = None
    limit: Annotated[int | None, Option("A limit.", min=1)] = 8
    folder: Annotated[str, Option("A folder.")] = ""
    fast: Annotated[bool, Option("Whether.")] = False
    inner: int = 7


BY_NAME = {parameter.name: parameter for parameter in parameters(Example)}


def test_own_parameters_come_first_and_fields_without_an_option_are_skipped():
    assert list(BY_NAME) == [
        "sizes", "dtypes", "side", "text", "limit", "folder", "fast", "count", "share", "uri"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", " 12 ", 12),
        ("share", "1e-3", 0.001),
        ("sizes", "4, 1,4,", (4, 1)),
        ("dtypes", "fp32,FP16,float32", ("float32", "float16")),
        ("dtypes", "none", ()),
        ("side", "right", "right"),
        ("text", "none", None),
        ("text", "None of these", "None of these"),
        ("limit", "none", None),
        ("limit", "0", None),
        ("limit", "64", 64),
        ("folder", "none", ""),
        ("folder", "", ""),
        ("uri", "", None),
        ("fast", "TRUE", True),
        ("fast", "0", False),
    ],
)
def test_a_text_is_parsed(name, text, value):
    assert BY_NAME[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "0", "count 0 is not possible: use 1 or more"),
        ("count", "x", "count 'x' is not a whole number"),
        ("count", "1.5", "is not a whole number"),
        ("count", "none", "is not a whole number"),
        ("count", "1" + "0" * 12, "use 1 or more, 1,000,000,000 at most"),
        ("count", "9" * 10_000, "is not a whole number"),
        ("share", "nan", "share nan is not possible: use more than 0 and less than 1"),
        ("share", "inf", "share inf is not possible"),
        ("share", "0", "share 0 is not possible"),
        ("sizes", "1,30000000", "sizes 30000000 is not possible: use 1 to 64"),
        ("sizes", " , ", "sizes: give 1 to 100 values"),
        ("sizes", "1;2", "sizes '1;2' is not a whole number"),
        ("sizes", "1," * 5_000, "sizes: give 1 to 100 values"),
        ("dtypes", "int3", "unknown dtype 'int3'"),
        ("side", "up", "no side 'up': use one of left, right"),
        ("text", "", "text is empty: give some text, or none"),
        ("limit", "-1", "limit -1 is not possible: use 1 or more"),
        ("fast", "maybe", "fast 'maybe' is not true or false"),
    ],
)
def test_an_invalid_text_is_refused_in_one_line(name, text, message):
    with pytest.raises(UsageError) as refused:
        BY_NAME[name].parse(text)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"share": float("nan")},
        {"sizes": (1, 65)},
        {"side": "up"},
        {"count": LARGEST + 1},
        {"count": "3"},
        {"count": True},
        {"count": 2.0},
        {"count": None},
        {"share": "0.5"},
        {"sizes": 3},
        {"sizes": [1, 2]},
        {"fast": 1},
        {"text": 5},
    ],
)
def test_a_config_built_in_python_is_validated(changes):
    with pytest.raises(UsageError):
        Example(**changes)
    with pytest.raises(UsageError):
        replace(Example(), **changes)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("count", "12", 12),
        ("count", np.int64(12), 12),
        ("share", np.float32(0.5), 0.5),
        ("sizes", [4, 1, 4], (4, 1)),
        ("sizes", "4,1", (4, 1)),
        ("sizes", range(1, 4), (1, 2, 3)),
        ("sizes", np.array([1, 2]), (1, 2)),
        ("sizes", 3, (3,)),
        ("dtypes", ["fp32", "FP16"], ("float32", "float16")),
        ("dtypes", [], ()),
        ("folder", Path("here"), "here"),
        ("limit", None, None),
        ("fast", True, True),
    ],
)
def test_python_values_are_accepted_as_on_the_command_line(name, argument, value):
    accepted = BY_NAME[name].accept(argument)
    assert accepted == value
    assert type(accepted) is type(value)
    if isinstance(value, tuple):
        assert [type(item) for item in accepted] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("count", 1.5, "count '1.5' is not a whole number"),
        ("count", True, "count 'True' is not a whole number"),
        ("count", [3], "is not a whole number"),
        ("count", None, "is not a whole number"),
        ("share", "half", "share 'half' is not a number"),
        ("sizes", [], "sizes: give 1 to 100 values"),
        ("sizes", [1, "x"], "sizes 'x' is not a whole number"),
        ("sizes", None, "is not a whole number"),
        ("sizes", [65], "sizes 65 is not possible: use 1 to 64"),
        ("dtypes", ["int3"], "unknown dtype 'int3'"),
        ("fast", 1, "is not true or false"),
        ("side", True, "is not a text"),
    ],
)
def test_python_values_of_another_type_are_refused_in_one_line(name, argument, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        BY_NAME[name].accept(argument)


@pytest.mark.parametrize("name", BY_NAME)
def test_formatted_defaults_parse_to_themselves(name):
    assert BY_NAME[name].parse(format_value(BY_NAME[name].default)) == BY_NAME[name].default


def test_command_line_options_have_help_default_and_bounds():
    options = {option.name: option for option in click_options(Example)}
    assert options["sizes"].opts == ["--sizes"]
    assert options["sizes"].help == "Sizes.  [default: 1,2; 1 to 64]"
    assert options["share"].help == "A share.  [default: 0.5; more than 0 and less than 1]"
    assert options["side"].metavar == "[left|right]"
    assert options["text"].default == "none"


def test_tracked_settings_are_plain_and_without_credentials():
    settings = tracked_settings(Example(uri="http://user:secret@host"), text="resolved", more=1)
    assert settings == {
        "sizes": "1,2", "dtypes": "none", "side": "left", "text": "resolved", "limit": 8, "folder": "",
        "fast": False, "count": 3, "share": 0.5, "more": 1,
    }  # fmt: skip


def test_a_config_is_built_from_the_fields_of_another_object():
    assert config_from(Example, Group(count=5), fast=True) == Example(count=5, fast=True)
    assert config_from(Group, Example(count=5, sizes=(3,))) == Group(count=5)
