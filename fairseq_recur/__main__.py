"""``python -m fairseq_recur``: the same as the command ``fairseq-recur``."""

import sys

from fairseq_recur.cli import main

# The guard matters: a process that torch.multiprocessing spawns imports this file again.
if __name__ == "__main__":
    sys.exit(main())
