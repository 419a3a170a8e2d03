"""Kernels of our own for GPUs, and whether they can be used here.

All are Triton's, which comes with torch where there is a GPU: of the modules in this room only `trying` may be imported
where there is none.
"""

from calmix.kernels.trying import Agrees, capturing, near, tried, try_together, usable

__all__ = ["Agrees", "capturing", "near", "tried", "try_together", "usable"]
