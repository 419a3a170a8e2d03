"""The pages of the documentation as a reader would follow them: their commands and their code."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page in their order: the language, and what is in it."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Return the words of every calmix command in a block, comments left out, those of a loop in every turn."""
    lines = _unrolled(text.replace("\\\n", " ")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("calmix ")]


def _unrolled(text: str) -> str:
    """Return a block with its loops replaced by what they do: a shell repeats their commands, and does none of them."""

    def turns(loop: re.Match[str]) -> str:
        said = 'calmix() { printf "calmix"; printf " %q" "$@"; echo; }\nPATH=\n' + loop[0]
        return subprocess.run(["/bin/bash", "-c", said], capture_output=True, text=True, check=True).stdout

    return re.sub(r"^for .*?^done[ ;a-z]*$", turns, text, flags=re.DOTALL | re.MULTILINE)


def follow(name: str, *, smaller: Mapping[str, str] | None = None, **names: Any) -> None:
    """Do what a page says from top to bottom, its Python with these names; a command must end well.

    `smaller` has what takes too long, and what is done instead.
    """
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for old, new in (smaller or {}).items():
        assert old in page, f"{name} has no {old!r} any more"
        page = page.replace(old, new)
    done = 0
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, f"<{name}>", "exec"), dict(names))
            done += 1
        for words in commands(text) if not language else ():
            assert exit_code(words[1:]) == 0, " ".join(words)
            done += 1
    assert done, f"{name} says nothing that could be done"


def exit_code(words: list[str]) -> int:
    """Return the code that a command ends with."""
    from calmix.cli.main import main

    try:
        main(words)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0
