"""`python -m calmix`, which launchers such as torchrun need."""

from calmix.cli import main

main()
