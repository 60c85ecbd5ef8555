"""COMET (Rei et al. 2020, *COMET: A Neural Framework for MT Evaluation*), if installed."""

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.scoring.mean_metric import MeanMetric

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
BATCH_SIZE = 8  # as in the package's examples; scores do not depend on it

Loaders = tuple[Callable[[str], str], Callable[[str], Any]]


def comet_package() -> Loaders:
    """Return the functions of the package comet that download and that load a model.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as error:
        raise ConfigError(
            f"COMET is not installed ({error}); pip install unbabel-comet (the package called "
            "comet is a different program)"
        ) from error
    return download_model, load_from_checkpoint


def check_inputs(
    source: Sequence[str] | None,
    texts: int,
    references: Sequence[Sequence[str]],
    problems: Problems,
) -> None:
    """Note input that COMET cannot score; ``texts`` is the number of texts per system."""
    if source is None:
        problems.add("COMET needs the source texts; give them with --source")
    elif len(source) != texts:
        problems.add(f"the source has {len(source)} lines, expected {texts}")
    if len(references) > 1:
        problems.add(f"COMET takes one reference, found {len(references)}; score COMET separately")


class CometMetric(MeanMetric):
    """The mean of a COMET model's scores, as the package's own command prints it.

    Args:
        source: the source texts.
        model: a name on the Hugging Face hub, or a checkpoint file.
        gpus: number of GPUs, 0 for the CPU.

    Raises:
        ConfigError: the package is not installed, or the model cannot be loaded.
    """

    name = "COMET"
    decimals = 4

    def __init__(self, source: Sequence[str], model: str = DEFAULT_MODEL, gpus: int = 0) -> None:
        self.source = source
        self.model = model
        self.gpus = gpus
        download_model, load_from_checkpoint = comet_package()
        try:
            file = model if Path(model).is_file() else download_model(model)
            self._model = load_from_checkpoint(file)
        except Exception as error:
            # The package raises Exception itself, and its libraries raise anything.
            raise ConfigError(
                f"COMET's model {model!r} cannot be loaded ({type(error).__name__}: {error}); "
                "expected a checkpoint file, or a name on the Hugging Face hub and a connection"
            ) from error

    def check(self, texts: int, references: Sequence[Sequence[str]], problems: Problems) -> None:
        """Note a second reference, or a number of sources that differs from that of the texts."""
        check_inputs(self.source, texts, references, problems)

    def score_texts(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Return the model's score of each text."""
        data = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(self.source, hypotheses, references[0])
        ]
        output = self._model.predict(data, batch_size=BATCH_SIZE, gpus=self.gpus)
        return [float(score) for score in output.scores]

    def get_signature(self) -> str:
        """Return the model and the version of the package."""
        try:
            installed = version("unbabel-comet")
        except PackageNotFoundError:  # a checkout on the path
            installed = "unknown"
        return f"nrefs:1|model:{self.model}|unbabel-comet:{installed}"
