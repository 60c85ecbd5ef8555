"""Every example of docs/python.md and of README.md runs, in the order of the page."""

import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_recur.search import OPTIONS
from tests.conftest import SMALL
from tests.docs.commands import ROOT
from tests.unit.test_language_model import SMALL_LM

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS, README = (
    re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    for page in ("docs/python.md", "README.md")
)

PAIR = ["-s", "en", "-t", "de", *SMALL]
MODELS: dict[str, list[str]] = {
    "checkpoints": ["translation", "transformer_biarn", *PAIR],
    "summarizer": ["summarization", "t5_small", *PAIR],
    "language-model": [
        "language_modeling", "rsa_transformer_lm", *SMALL_LM, "--tokens-per-sample", "64",
    ],
}  # fmt: skip


def save(folder: Path, task: str, arch: str, *flags: str) -> None:
    """Save a model with random weights as fairseq saves trained ones."""
    parser = options.get_training_parser(task)
    words = [str(folder.parent / "data-bin"), "--task", task, "--arch", arch, *flags]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    of_task = tasks.setup_task(cfg.task)
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}
    state = {
        "args": None, "cfg": cfg, "model": of_task.build_model(cfg.model).state_dict(),
        "task_state": of_task.state_dict(), "extra_state": {"train_iterator": None},
        "optimizer_history": [{**history, "num_updates": 0}],
    }  # fmt: skip
    folder.mkdir()
    torch.save(state, folder / "checkpoint_best.pt")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the page names: models, data-bin, bpe.model."""
    corpus = ROOT / "examples" / "quickstart" / "data" / "valid"
    sentencepiece.SentencePieceTrainer.train(
        input=f"{corpus}.en,{corpus}.de", model_prefix=str(tmp_path / "bpe"), vocab_size=300,
        minloglevel=2,
    )  # fmt: skip
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bpe.model"))
    dictionary = Dictionary()
    for index in range(3, pieces.get_piece_size()):
        dictionary.add_symbol(pieces.id_to_piece(index))
    for name in ("dict.en.txt", "dict.de.txt", "dict.txt"):
        dictionary.save(str(tmp_path / "data-bin" / name))
    for name, words in MODELS.items():
        save(tmp_path / name, *words)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_examples_run(place: Path, capsys: pytest.CaptureFixture) -> None:
    assert len(BLOCKS) >= 8
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert len(names["translations"]) == 3 and names["translations"][1] == ""
    assert names["hypothesis"].tokens[-1] == "</s>" and "\u2581" not in names["hypothesis"].text
    assert names["scored"][0].text == "Klicken Sie auf die Zelle."
    assert "steps 0" in printed and printed.count("\n") > 15
    for block in README:
        exec(compile(block, "README.md", "exec"), {})
    assert README and capsys.readouterr().out.count("\n") == 3


def test_page_names_every_search_option() -> None:
    (listed,) = re.findall(r"search options are (.*?), +with", PAGE.replace("\n", " "))
    assert set(re.findall(r"`(\w+)`", listed)) == set(OPTIONS)
