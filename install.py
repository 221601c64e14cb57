"""`python install.py WORDS` does what `pip install WORDS` does, by uv in a fraction of the time; `make` installs by it.

uv reads none of pip's settings: an index, a folder of wheels or constraints that they name, it is told. What uv cannot
install pip is asked for, which then says why.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

# What pip's settings say of where packages come from, in uv's words.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
# Of several places that say it, pip believes the last one.
SECTIONS = ("global", "install", ":env:")


def settings(listed: str) -> dict[str, list[str]]:
    """Return the words of each of pip's settings, from what `pip config list` prints."""
    found = {}
    for wanted in SECTIONS:
        for line in listed.splitlines():
            name, _, value = line.partition("=")
            section, _, option = name.rpartition(".")
            if section == wanted:
                found[option] = str(ast.literal_eval(value)).split()
    return found


def told(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return pip's settings as options of `uv pip install`, which looks through all indexes, as pip does."""
    options = ["--index-strategy", "unsafe-best-match"]
    for option, name in OPTIONS.items():
        for word in found.get(option, ()):
            options += [name, word]
    return [*options, "--no-index"] if found.get("no-index") in (["1"], ["true"], ["yes"]) else options


def variables(found: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return pip's settings that uv reads from its environment."""
    return {VARIABLES[option]: " ".join(words) for option, words in found.items() if option in VARIABLES}


def main(words: Sequence[str]) -> int:
    """Install into the environment of this Python, in which uv is, and return an exit code."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = settings(listed.stdout)
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    if not subprocess.run([*by_uv, *told(found), *words], env={**os.environ, **variables(found)}).returncode:
        return 0
    print("uv cannot install it: pip tries", file=sys.stderr)
    return subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *words]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
