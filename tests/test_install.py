"""pip's settings are passed on to uv when it replaces pip."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import install

PIP_CONFIG = """:env:.find-links='/wheels /more'
:env:.cert='/etc/ca.crt'
global.find-links='/old'
global.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'
global.index-url='https://mirror/simple'
install.constraint='/etc/constraints.txt'
"""


def test_pips_indexes_wheels_and_constraints_are_passed_on():
    settings = install.settings(PIP_CONFIG)
    options = install.told(settings)
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert pairs == [
        ("--index-strategy", "unsafe-best-match"),
        ("--default-index", "https://mirror/simple"),
        ("--index", "https://one/simple"),
        ("--index", "https://two/simple"),
        ("--find-links", "/wheels"),
        ("--find-links", "/more"),
        ("--constraint", "/etc/constraints.txt"),
    ]
    assert install.variables(settings) == {"SSL_CERT_FILE": "/etc/ca.crt"}


def test_uv_gets_no_index_without_settings_or_with_no_index():
    assert install.told(install.settings("")) == ["--index-strategy", "unsafe-best-match"]
    assert install.told(install.settings("global.no-index='true'"))[-1] == "--no-index"


def test_pip_installs_what_uv_cannot(monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        return SimpleNamespace(stdout="", returncode=1 if "uv" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert install.main(["torch==2.13.0"]) == 0
    assert [command[2] for command in commands] == ["pip", "uv", "pip"]
    assert [command[-1] for command in commands[1:]] == ["torch==2.13.0"] * 2
