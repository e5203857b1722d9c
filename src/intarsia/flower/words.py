"""Words by which the operator's screen knows what the ServerApp says."""

MARK = "[intarsia] "
ENDED = f"{MARK}the run has ended"
