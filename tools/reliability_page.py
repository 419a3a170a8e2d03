"""Kill commands in every way and write what came of it into docs/reliability.md: `python tools/reliability_page.py`.

Each command is killed before every change of a file below its folder, at random moments and in the middle of writing,
and run on a disk that is too small; then it is given again, and what it leaves is compared with what it leaves when
nothing happens. The other faults of the table are tests, which are run. A quarter of an hour of one core that nobody
else uses, as root (who alone can mount small disks). `--every 10` tries every tenth change, `--only map` one command;
what is known of the others (results/reliability/faults.json) stays then, and the page says that it was put together.
"""

import argparse
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from calmix.data import write_json, write_text

ROOT = Path(__file__).resolve().parents[1]
KNOWN, PAGE = ROOT / "results" / "reliability" / "faults.json", ROOT / "docs" / "reliability.md"
_MEMORY = "/dev/shm"
BEGIN, END = "<!-- made by tools/reliability_page.py -->", "<!-- until here -->"
DISKS = (4, 90, 200, 300, 400)

# Fault → what happens, and the tests that show it.
TESTED = {
    "Ctrl-C and SIGTERM": ("one line, state saved, exit code 130", "a_signal_stops or ctrl_c or sigterm"),
    "torn checkpoint": ("found by its checksum; the one before is used", "torn_checkpoint or cannot_be_read_is_passed"),
    "loss or gradient not finite": ("never reaches the weights; one line, exit code 1", "not_finite"),
    "out of memory": ("batch in twice as many parts, said once, kept in run.toml", "test_cutting"),
    "read-only folder": ("one line, exit code 2", "read_only"),
    "file that may not grow": ("one line, exit code 1", "may_not_grow"),
    "file removed meanwhile": ("one line, exit code 2", "gone_when_it_is_needed"),
    "clock that goes backwards": ("no difference", "clock"),
    "second command in the folder": ("told so, exit code 2", "second_command or two_runs_cannot"),
    "full disk in a study": ("no run is blamed; the study stops", "no_runs_fault"),
    "worker of a study killed": ("its run is taken over", "killed_worker or worker_that_dies"),
    "process of torchrun killed": ("restarted, and resumed to the same bits", "lost_process"),
    "node of a Ray cluster lost": ("its task is begun again", "lost_worker or node_that_is_lost"),
}


def tried(command: Any, root: Path, every: int, faults: Any) -> dict[str, Any]:
    """Return how often a command met each fault, and how often it then came to the same files."""
    expected, found = faults.tried(command, root, every=every)
    for size in DISKS if os.geteuid() == 0 and command.start is None else ():
        same, full = _on_a_small_disk(command, root / "disk", size, expected, faults)
        faults.count(found, "disks", f"{size} KiB", died=full, same=same)
    return dict(found)


def _on_a_small_disk(command: Any, place: Path, size: int, expected: Any, faults: Any) -> tuple[bool, bool]:
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, f"size={size}k", "tmpfs", str(place)], check=True)
    try:
        first = faults.forked(partial(command.run, place), place)
        subprocess.run([*mount, "remount,size=64m", "tmpfs", str(place)], check=True)
        again = command.again(place)
        one_line = "Traceback" not in first.err and first.code in (0, 1)
        return one_line and again.code == 0 and faults.left_in(place) == expected, first.code != 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


def tested() -> dict[str, Any]:
    """Return how many tests there are of each other fault, and whether they pass."""
    chosen = " or ".join(words for _, words in TESTED.values())
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests"), "-q", "-rA", "-p", "no:cacheprovider", "-k", chosen]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
    lines = [line.split(" ") for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR "))]
    found = {}
    for fault, (_, words) in TESTED.items():
        ends = [line[0] for line in lines if any(word in line[1] for word in words.split(" or "))]
        found[fault] = {"passed": bool(ends) and set(ends) == {"PASSED"}, "tests": len(ends)}
    return found


def table(known: dict[str, Any]) -> str:
    """Return the tables of the page."""
    kinds = {"changes": "before a change of a file", "moments": "at a random moment", "sizes": "amid a file"}
    kinds["disks"] = "disk too small"
    how = (
        f"in one run ({known['minutes']} minutes of a processor)"
        if known["whole"]
        else "put together from several runs"
    )
    lines = [f"Made on {known['when']} by `python tools/reliability_page.py`, {how}.", ""]
    lines += ["| command | " + " | ".join(kinds.values()) + " |", "| --- " * (1 + len(kinds)) + "|"]
    for name, found in known["commands"].items():
        cells = []
        for kind in kinds:
            count = found.get(kind)
            cells.append("–" if count is None else f"{count['same']} of {count['tried']}{_note(found, kind)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "A cell says how often the same files were left in the end, of how many times it was tried.", ""]
    lines += [f"The tests of other faults, all run on {known['tested']} (`--tests` runs them alone):", ""]
    lines += ["| other fault | what happens | tests that pass |", "| --- | --- | --- |"]
    for fault, (what, _) in TESTED.items():
        count = known["tests"].get(fault)
        if count is not None:
            lines.append(f"| {fault} | {what} | {count['tests'] if count['passed'] else 'FAILED'} |")
    return "\n".join(lines)


def _note(found: dict[str, Any], kind: str) -> str:
    if kind == "changes" and found["every"] > 1:
        return f" (there are {found['changes_there_are']})"
    return ""


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _processor_minutes() -> float:
    """Return the processor's time that this process and those it waited for have taken."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) / 60


def main() -> int:
    """Try everything, write the page, and return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="try every so many-th change of a file")
    parser.add_argument("--only", action="append", help="this command alone; repeatable")
    parser.add_argument("--tests", action="store_true", help="run the tests of the other faults alone")
    parser.add_argument("--page", action="store_true", help="try nothing: write the page from what is known")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    # Shells start background jobs with Ctrl-C ignored, and the tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    known: dict[str, Any] = {"commands": {}, "tests": {}, "whole": True}
    whole = not (options.page or options.tests or options.only)
    if KNOWN.is_file() and not whole:
        known = json.loads(KNOWN.read_text())
        known["whole"] = known["whole"] and not options.only
    if not (options.page or options.tests):
        sys.path.insert(0, str(ROOT / "tests"))
        faults: Any = importlib.import_module("faults")
        with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
            for name, command in faults.commands(Path(folder) / "inputs").items():
                if options.only is None or name in options.only:
                    began = time.monotonic()
                    known["commands"][name] = tried(command, Path(folder) / name, options.every, faults)
                    print(f"{name}: {known['commands'][name]}, {time.monotonic() - began:.0f} s", flush=True)
        known |= {"when": _now(), "minutes": round(_processor_minutes())}
    if options.tests or whole:
        known |= {"tests": tested(), "tested": _now()}
    write_json(KNOWN, known)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n\n{table(known)}\n\n{END}{rest.partition(END)[2]}")
    kinds = [count for found in known["commands"].values() for count in found.values() if isinstance(count, dict)]
    lost = any(count["failed"] for count in kinds) or not all(test["passed"] for test in known["tests"].values())
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
