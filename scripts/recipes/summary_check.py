"""Checks of prepared data, before a training and before its evaluation."""

from pathlib import Path

from fairseq_recur.errors import ConfigError
from recipes.steps import key_of, made_in
from recipes.summary_options import Choices, start_file


def check_prepared(choices: Choices, work: Path) -> None:
    """Check that the data and the initial model exist.

    Raises:
        ConfigError: one of them does not, or the data are of other texts, see `check_texts`
    """
    wanted = [work / choices.folder / "data-bin"]
    if choices.start != "none":
        wanted.append(start_file(choices, work))
    missing = [str(path) for path in wanted if not path.exists()]
    if missing:
        raise ConfigError(
            f"there is no {' and no '.join(missing)}; run prepare.sh with the same settings first"
        )
    check_texts(choices, work)


def check_texts(choices: Choices, work: Path) -> None:
    """Check that the binary data are those of the texts, which all kinds of subwords share.

    A preparation with other subwords may have replaced the texts, and one that was stopped may
    not have come to the data.

    Raises:
        ConfigError: they were made from other texts
    """
    prepared = work / choices.folder
    data, texts, model = map(made_in, (prepared / "data-bin", work / "text", prepared / "model"))
    if data is None or texts is None or model is None:
        return
    pieces = key_of("pieces", [texts, model, choices.limits])
    if data.key != key_of("data-bin", [pieces, model]):
        raise ConfigError(
            f"{data.folder} was not made from the texts that are now in {texts.folder}; run "
            "prepare.sh with the variables of these data, such as TEXTS and SAMPLE, or choose "
            "another WORK"
        )
