"""`python -m intarsia` is the command `intarsia`."""

from intarsia.cli.app import main

main()
