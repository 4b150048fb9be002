"""The command line: one file a verb, each importing what it needs when it is used."""

import os

# Threads that wait asleep: on a busy machine OpenMP's spinning makes a question several times
# slower, on a quiet one sleeping costs nothing that can be measured. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
