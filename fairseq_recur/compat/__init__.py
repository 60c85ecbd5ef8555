"""The only folder that knows which fairseq, torch and hydra are installed.

Importing it registers the mends, one module per subject: each corrects one thing that the installed
libraries do wrong, and states the reason and what will make it unnecessary. `apply` applies those
that this installation needs. `environment_report` and `known_problems` describe the machine for
``fairseq-recur check``. `apply` is the first to import fairseq. If that fails, it says what to
install.
"""

from fairseq_recur.compat import (  # noqa: F401  (each registers its mends, in this order)
    adaptive_loss,
    checkpoint_writing,
    checkpoints,
    configuration,
    console,
    data,
    dictionaries,
    embeddings,
    evaluation,
    half_precision,
    imports,
    interactive,
    literals,
    log_file,
    processes,
    search,
    tasks,
    training,
    validations,
)
from fairseq_recur.compat.checkpoint_reading import checkpoint_problem, read_checkpoint
from fairseq_recur.compat.configuration import model_options
from fairseq_recur.compat.encoder_layer import disable_encoder_fastpath, drop_stale_encoder_keys
from fairseq_recur.compat.graphs import is_exporting, outside_graphs
from fairseq_recur.compat.registry import MENDS, Mend
from fairseq_recur.compat.report import Problem, environment_report, known_problems
from fairseq_recur.compat.safe_loading import UNSAFE_VARIABLE, safe_globals
from fairseq_recur.errors import InstallationError

__all__ = [
    "MENDS",
    "UNSAFE_VARIABLE",
    "Mend",
    "Problem",
    "apply",
    "checkpoint_problem",
    "disable_encoder_fastpath",
    "drop_stale_encoder_keys",
    "environment_report",
    "is_exporting",
    "known_problems",
    "model_options",
    "outside_graphs",
    "read_checkpoint",
    "safe_globals",
]


REINSTALL = "reinstall it with its pins"


def apply() -> None:
    """Apply the mends that the installed fairseq and torch need; a second call changes nothing.

    Raises:
        InstallationError: fairseq cannot be imported, or a mend that protects the user does not fit
            it; the message says what to install
    """
    try:
        import hydra.core.config_store  # noqa: F401  (what mends change before fairseq uses it)

        for mend in MENDS:
            if mend.before_fairseq:
                mend.apply()
        import fairseq  # noqa: F401
    except Exception as error:  # a wrong hydra or Python breaks it with errors of many types
        serious = [p for p in known_problems() if p.severity == "error"]
        remedies = "".join(f"\n- {p.title}: {p.remedy}" for p in serious)
        message = f"fairseq cannot be imported ({type(error).__name__}: {error}); "
        remedy = f"do what applies:{remedies}" if remedies else REINSTALL
        raise InstallationError(message + remedy) from error
    for mend in MENDS:
        mend.apply()
