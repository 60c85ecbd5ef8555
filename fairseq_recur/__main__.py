"""``python -m fairseq_recur`` is the same as the command ``fairseq-recur``."""

import sys

from fairseq_recur.cli import main

# torch.multiprocessing imports this file again in the processes that it spawns.
if __name__ == "__main__":
    sys.exit(main())
