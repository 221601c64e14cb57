"""Point to a model on disk or in the hub without copying it: how to load it, and the digests of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmtrack.errors import ModelLoadError
from llmtrack.spec.scenario import Variant
from llmtrack.spec.serialization import from_json, serializable, to_json

_FILE = "llmtrack.json"


@serializable()
@dataclass(frozen=True)
class Pointer:
    """Content of a registered model in place of weights.

    Attributes:
        digests: of the measured files, by the names under which engines report them.
    """

    variant: Variant
    digests: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write it into a folder; see `read_pointer`."""
        (folder / _FILE).write_text(json.dumps(to_json(self), indent=1) + "\n", encoding="utf-8")

    def check(self, loaded: Mapping[str, str]) -> None:
        """Compare the digests that the loaded engine reports with the registered ones.

        Raises:
            ModelLoadError: a digest differs.
        """
        for name, digest in self.digests.items():
            if loaded.get(name) != digest:
                raise ModelLoadError(
                    f"{self.variant.model} is not the model that was registered ({name} is {loaded.get(name)}, was {digest}): "
                    "restore its files, or measure it again and promote that run"
                )


def read_pointer(folder: Path) -> Pointer | None:
    """Return the pointer in a folder, or None.

    Raises:
        ValueError: it is damaged.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    pointer: Pointer = from_json(json.loads(path.read_text(encoding="utf-8")), Pointer)
    return pointer
