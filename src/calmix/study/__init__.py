"""Methods × tasks × seeds: the grid, where it runs, and the tables."""

from calmix.study.asking import Study, read_study
from calmix.study.collecting import collect
from calmix.study.conducting import Outcome, conduct, outcome
from calmix.study.grid import Library, Plan, make_plan
from calmix.study.working import State, Storage, state_of, work

__all__ = [
    "Library",
    "Outcome",
    "Plan",
    "State",
    "Storage",
    "Study",
    "collect",
    "conduct",
    "make_plan",
    "outcome",
    "read_study",
    "state_of",
    "work",
]
