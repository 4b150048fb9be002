"""The command line: one file a verb, each importing what it needs when it is used."""

import os

# Threads that wait asleep: beside one or two busy neighbours OpenMP's spinning makes a question up
# to twice as slow. On a quiet machine sleeping costs a quarter of it: there OMP_WAIT_POLICY=ACTIVE
# is quicker. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
