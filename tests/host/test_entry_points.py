"""The installed packages are read once, until one of their folders changes."""

from __future__ import annotations

import os

from llmtrack.host import entry_points
from llmtrack.host.entry_points import ENGINE_POINTS, names_of
from llmtrack.host.packages import installed_version
from tests.extensions import install


def test_a_package_installed_meanwhile_is_found(tmp_path, monkeypatch):
    read = entry_points.entry_points
    reads = []
    monkeypatch.setattr(entry_points, "entry_points", lambda group: reads.append(group) or read(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    os.utime(tmp_path, (0, 0))  # before any tick of the file system's clock
    before = names_of(ENGINE_POINTS)
    assert names_of(ENGINE_POINTS) == before
    assert reads == [ENGINE_POINTS]
    assert installed_version("another") == ""
    install(tmp_path, "another", "", "[llmtrack.engines]\nanother = another:load\n")
    assert set(names_of(ENGINE_POINTS)) == {*before, "another"}
    assert reads == [ENGINE_POINTS] * 2
    assert installed_version("another") == "1.0"
