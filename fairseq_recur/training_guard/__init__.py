"""One training in a folder, equal options and data on its processes, and no data lost at a resume.

These are additions to fairseq, for every model.
"""

# In this order: a trainer's processes are compared before its folder is locked.
from fairseq_recur.training_guard import comparison, folder, resume

__all__ = ["comparison", "folder", "resume"]
