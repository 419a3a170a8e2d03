"""Who is mixed with whom, where, and what the loss is a sum of."""

from calmix.mixing.bank import Bank, Search, partner_counts
from calmix.mixing.checking import check_per_row
from calmix.mixing.choosing import Option, choose, describe, options_of
from calmix.mixing.distilling import TEACHER, Form
from calmix.mixing.loss import batch_loss
from calmix.mixing.recipes import RECIPES, Recipe
from calmix.mixing.sampling import Pool, Sampling
from calmix.mixing.step import Signal, Step, fill_tokens
from calmix.mixing.verification import verify_mixing

__all__ = [
    "RECIPES",
    "TEACHER",
    "Bank",
    "Form",
    "Option",
    "Pool",
    "Recipe",
    "Sampling",
    "Search",
    "Signal",
    "Step",
    "batch_loss",
    "check_per_row",
    "choose",
    "describe",
    "fill_tokens",
    "options_of",
    "partner_counts",
    "verify_mixing",
]
