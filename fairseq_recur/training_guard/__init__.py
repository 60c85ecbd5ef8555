"""What a training cannot be without: a folder of its own, and data that fit.

One training in a folder, equal options and data on its processes, no data lost at a resume, and the
words that a model was trained with.

These are additions to fairseq, for every model.
"""

# In this order: a trainer's processes are compared before its folder is locked.
from fairseq_recur.training_guard import comparison, dictionaries, folder, resume

__all__ = ["comparison", "dictionaries", "folder", "resume"]
