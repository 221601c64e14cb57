"""Convert frozen dataclasses to JSON-ready data and back: one converter for everything that is sent or stored."""

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
# Keep the JSON type of a Scalar; cattrs would otherwise try int and float in turn.
_converter.register_structure_hook(Scalar, lambda value, _: value)


class UnknownFieldsError(ValueError):
    """The data is valid but has unknown fields: a newer version wrote it."""


def to_json(value: Any, kind: Any = None) -> Any:
    """Convert a dataclass to JSON-ready data; give `kind`, a `tagged` union, to record which member it is."""
    return _converter.unstructure(value, unstructure_as=kind)


def from_json(data: Any, kind: Any) -> Any:
    """Rebuild a dataclass, or a member of a `tagged` union.

    Raises:
        UnknownFieldsError: only unknown fields are wrong.
        ValueError: the data is invalid; the message says where.
    """
    try:
        return _converter.structure(data, kind)
    except cattrs.BaseValidationError as error:
        kind_of_error = UnknownFieldsError if _only_unknown_fields(error) else ValueError
        raise kind_of_error("; ".join(cattrs.transform_error(error))) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"invalid data ({type(error).__name__}: {error})") from error


def _only_unknown_fields(error: Exception) -> bool:
    if isinstance(error, cattrs.BaseValidationError):
        return all(map(_only_unknown_fields, error.exceptions))
    return isinstance(error, cattrs.ForbiddenExtraKeysError)


def tagged(union: Any) -> None:
    """Record the member type when values of a union are serialized as that union."""
    configure_tagged_union(union, _converter, tag_name="kind_of")


def serializable(*omitted: str) -> Callable[[Class], Class]:
    """Decorate a dataclass that is stored, so that it can be read by other versions.

    Unknown fields are rejected instead of dropped.

    Args:
        omitted: fields left out if empty, as in data from before they existed.
    """

    def register(kind: Class) -> Class:
        # Built on first use: field types may be declared later in the module.
        def unstructure(_: Any) -> Any:
            all_fields: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(kind, _converter)
            return lambda value: {key: v for key, v in all_fields(value).items() if v or key not in omitted}

        def structure(_: Any) -> Any:
            return make_dict_structure_fn(kind, _converter, _cattrs_forbid_extra_keys=True)

        _converter.register_unstructure_hook_factory(lambda candidate: candidate is kind, unstructure)
        _converter.register_structure_hook_factory(lambda candidate: candidate is kind, structure)
        return kind

    return register


def digest(value: Any) -> str:
    """Digest a JSON-ready value as 16 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
