"""`python -m intarsia` is the command `intarsia`."""

from intarsia.cli import main

main()
