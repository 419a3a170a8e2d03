"""Methods × tasks × seeds: the grid, where it runs, and the tables."""

from calmix.study.asking import Study, read_study
from calmix.study.collecting import collect
from calmix.study.conducting import Order, Outcome, Prepared, conduct, outcome, prepare
from calmix.study.grid import Library, Plan, make_plan
from calmix.study.spreading import conduct_on_ray, conduct_with_workers, fitting_workers
from calmix.study.working import State, Storage, state_of, work

__all__ = [
    "Library",
    "Order",
    "Outcome",
    "Plan",
    "Prepared",
    "State",
    "Storage",
    "Study",
    "collect",
    "conduct",
    "conduct_on_ray",
    "conduct_with_workers",
    "fitting_workers",
    "make_plan",
    "outcome",
    "prepare",
    "read_study",
    "state_of",
    "work",
]
