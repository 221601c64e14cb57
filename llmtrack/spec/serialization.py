"""Plain frozen dataclasses as JSON-ready dicts and lists, and back: one converter for all that is sent or kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar, Union

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn
from cattrs.strategies import configure_tagged_union

Scalar = Union[str, int, float, bool]  # noqa: UP007 - cattrs reads this alias at run time on Python 3.10
Class = TypeVar("Class", bound=type)

_converter = cattrs.Converter(prefer_attrib_converters=True)
# A Scalar keeps the type that JSON gave it; int and float would otherwise be tried in turn.
_converter.register_structure_hook(Scalar, lambda value, _: value)


class UnknownFieldsError(ValueError):
    """Data is whole, and has fields that this version does not know: a newer one wrote it."""


def to_json(value: Any, kind: Any = None) -> Any:
    """Turn a dataclass into JSON-ready data.

    Give `kind` (a union that is `tagged`) where the reader must be told which member it is.
    """
    return _converter.unstructure(value, unstructure_as=kind)


def from_json(data: Any, kind: Any) -> Any:
    """Rebuild a dataclass, or a member of a union that is `tagged`, from `to_json`'s result.

    Raises:
        UnknownFieldsError: it is but for fields that this version does not know.
        ValueError: the data is not of that kind; says in one line where.
    """
    try:
        return _converter.structure(data, kind)
    except cattrs.BaseValidationError as error:
        kind_of_error = UnknownFieldsError if _only_unknown_fields(error) else ValueError
        raise kind_of_error("; ".join(cattrs.transform_error(error))) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no data of this kind ({type(error).__name__}: {error})") from error


def _only_unknown_fields(error: Exception) -> bool:
    if isinstance(error, cattrs.BaseValidationError):
        return all(map(_only_unknown_fields, error.exceptions))
    return isinstance(error, cattrs.ForbiddenExtraKeysError)


def tagged(union: Any) -> None:
    """Have the members of a union tell, where they are asked for as such, which of them they are."""
    configure_tagged_union(union, _converter, tag_name="kind_of")


def kept(*left_out: str) -> Callable[[Class], Class]:
    """Have a dataclass, as a decorator, outlast the version that wrote it.

    Data with a field that this version does not know is refused, and not cut short.

    Args:
        left_out: fields that are not written where they are empty, as it was before there were such fields.
    """

    def register(kind: Class) -> Class:
        # Made when first needed: the types of the fields may be declared below.
        def unstructure(_: Any) -> Any:
            whole: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(kind, _converter)
            return lambda value: {key: v for key, v in whole(value).items() if v or key not in left_out}

        def structure(_: Any) -> Any:
            return make_dict_structure_fn(kind, _converter, _cattrs_forbid_extra_keys=True)

        _converter.register_unstructure_hook_factory(lambda each: each is kind, unstructure)
        _converter.register_structure_hook_factory(lambda each: each is kind, structure)
        return kind

    return register


def digest(value: Any) -> str:
    """Return 16 hex digits that identify a JSON-ready value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
