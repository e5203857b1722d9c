"""One file a group of commands, found by being here: its `group`, and `PLACE` and `PANEL` in the help.

With a `NAME` the commands stand under it (`intarsia data check`), without one they are commands of their own
(`intarsia run`). These files import nothing heavy (no torch): what a command needs, it imports when it runs.
"""
