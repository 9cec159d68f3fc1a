"""`python -m domino`."""

from .cli import main

main()
