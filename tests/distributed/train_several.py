"""Several trainings in sequence in each process of torchrun, because importing takes seconds.

``torchrun --nproc_per_node 2 -m tests.distributed.train_several PLAN``, where PLAN is a JSON
file with the arguments of each training.
"""

import json
import sys
from pathlib import Path

from tests.running import run_command

if __name__ == "__main__":
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        print(run_command("train", *arguments))
