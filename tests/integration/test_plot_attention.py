"""The command `fairseq-recur plot attention`, on models of every kind with random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from PIL import Image

from fairseq_recur.cli import main
from tests.conftest import BART_FLAGS, PLAIN, SMALL
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

Save = Callable[..., str]
GATED = "--recurrence-fusion gated_sum --recurrence-fused-layers all --recurrence-steps 3".split()

MODELS: dict[str, list[str]] = {
    "stock": ["transformer"],
    "biarn": ["transformer_biarn"],
    "gated": ["transformer_biarn", *GATED],
    "birnn": ["transformer_biarn", "--recurrence", "birnn"],
    "srformer": ["srformer", "--segment-size", "2", "--target-length", "6"],
    "rsa": ["rsa_transformer"],
    "t5": ["t5_small"],
}
KINDS: dict[str, list[str]] = {
    "biarn": ["encoder", "decoder", "cross", "steps", "fusion"],
    "gated": ["encoder", "decoder", "cross", "steps", "fusion", "gate"],
    "birnn": ["encoder", "decoder", "cross", "fusion"],
}
"""What there is to see; of the others the first three."""


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory, dictionary: Dictionary) -> Save:
    """Save a model with random weights next to its dictionaries, as fairseq does."""
    root = tmp_path_factory.mktemp("models")
    saved: dict[str, str] = {}

    def make(name: str, *flags: str, task: str = "translation") -> str:
        if name not in saved:
            folder = root / name
            folder.mkdir()
            for language in ("src", "tgt"):
                dictionary.save(str(folder / f"dict.{language}.txt"))
            dictionary.save(str(folder / "dict.txt"))
            words = [str(folder), "--task", task, "--arch", *(flags or MODELS[name])]
            if task == "translation":
                words += ["-s", "src", "-t", "tgt", *SMALL]
            args = options.parse_args_and_arch(options.get_training_parser(task), words)
            cfg = convert_namespace_to_omegaconf(args)
            torch.manual_seed(1)
            model = tasks.setup_task(cfg.task).build_model(cfg.model)
            history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}
            state = {
                "args": None, "cfg": cfg, "model": model.state_dict(), "task_state": {},
                "optimizer_history": [{**history, "num_updates": 0}],
                "extra_state": {"train_iterator": None},
            }  # fmt: skip
            saved[name] = str(folder / "model.pt")
            torch.save(state, saved[name])
        return saved[name]

    return make


@pytest.fixture
def draw(save: Save, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the command on a model and read its output file; a search for at most four tokens."""

    def run(name: str, *words: str) -> dict[str, Any]:
        image, matrices = tmp_path / "a.png", tmp_path / "a.json"
        source = [] if "--source" in words else ["--source", "w1 w2 w3"]
        command = ["plot", "attention", save(name), *source, *words]
        command += [] if "--target" in words else ["--max-len-b", "4"]
        command += ["--output", str(image), "--json", str(matrices)]
        assert main(command) == 0
        with Image.open(image) as picture:
            assert picture.format == "PNG" and min(picture.size) > 100
        return json.loads(matrices.read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize("name", [
    pytest.param(m, marks=() if m in ("gated", "rsa", "srformer") else pytest.mark.slow)
    for m in MODELS
])  # fmt: skip
def test_every_structure(name: str, draw: Callable[..., dict[str, Any]]) -> None:
    found = draw(name)
    assert list(dict.fromkeys(p["kind"] for p in found["panels"])) == KINDS.get(
        name, ["encoder", "decoder", "cross"]
    )
    assert found["source"] == ["w1", "w2", "w3", "</s>"]
    for panel in found["panels"]:
        assert len(panel["values"]) == len(panel["rows"])
        assert {len(row) for row in panel["values"]} == {len(panel["columns"])}
        if panel["kind"] not in ("gate",) and name != "rsa":
            sums = [sum(row) for row in panel["values"]]
            assert sums == pytest.approx([1.0] * len(panel["rows"]))
        if panel["kind"] in ("decoder", "cross", "fusion", "gate"):
            assert panel["rows"] == found["target"]


@pytest.mark.slow
def test_translation_is_fairseqs(
    save: Save, draw: Callable[..., dict[str, Any]], cli: Callable[..., str]
) -> None:
    """With beams, as fairseq-interactive finds it; a given target is taken as it is."""
    checkpoint = save("gated")
    out = cli(
        "interactive", Path(checkpoint).parent, "--path", checkpoint, "-s", "src", "-t", "tgt",
        "--beam", 3, "--lenpen", 0.5, "--max-len-b", 4, "--cpu", stdin="w1 w2 w3\n",
    )  # fmt: skip
    (line,) = [line for line in out.splitlines() if line.startswith("H-0")]
    own = draw("gated", "--beam", "3", "--lenpen", "0.5")
    # fairseq leaves the other symbols of the sentence's limits out of its lines.
    words = [word for word in own["target"] if word not in ("<s>", "</s>")]
    assert words == line.split("\t")[2].split() and own["target"][-1] == "</s>"
    forced = draw("gated", "--target", " ".join(own["target"][:-1]))
    for ours, theirs in zip(own["panels"], forced["panels"]):
        values = (torch.tensor(panel["values"]) for panel in (ours, theirs))
        assert torch.allclose(*values, atol=1e-5)
    other = draw("gated", "--target", "w7 w8", "--show", "cross", "gate", "--layer", "0")
    assert other["target"] == ["w7", "w8", "</s>"]
    assert [(p["kind"], p["layer"]) for p in other["panels"]] == [("cross", 0), ("gate", 0)]


def test_words(draw: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Labels show unknown words with their symbol; one word is enough; BPE is fairseq's."""
    target = ["--target", "w2 \u4f60\u597d"]
    found = draw("biarn", "--source", "w1 Haus $x$", *target, "--show", "decoder")
    assert found["source"] == ["w1", "<unk> Haus", "<unk> $x$", "</s>"]
    assert found["target"] == ["w2", "<unk> \u4f60\u597d", "</s>"]
    (decoder,) = found["panels"]
    assert decoder["columns"] == ["</s>", "w2", "<unk> \u4f60\u597d"]
    assert draw("biarn", "--source", "w1", "--show", "steps")["source"] == ["w1", "</s>"]
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\nw 1</w>\n", encoding="utf-8")
    bpe = ["--bpe", "subword_nmt", "--bpe-codes", str(codes)]
    found = draw("biarn", "--source", "w1 w2", "--target", "w1", "--show", "cross", *bpe)
    assert found["source"] == ["w1", "<unk> w@@", "<unk> 2", "</s>"]


@pytest.mark.slow
def test_other_formats(save: Save, tmp_path: Path) -> None:
    for suffix, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        output = tmp_path / f"a.{suffix}"
        command = ["plot", "attention", save("gated"), "--source", "w1", "--target", "w2"]
        command += ["--show", "cross", "gate"]
        assert main([*command, "--output", str(output)]) == 0
        assert output.read_bytes().startswith(start)


def test_dictionaries_of_the_training(save: Save, tmp_path: Path) -> None:
    """A checkpoint without dictionaries beside it, as fairseq-train writes it, needs no --data."""
    alone = tmp_path / "model.pt"
    alone.write_bytes(Path(save("biarn")).read_bytes())
    command = ["plot", "attention", str(alone), "--source", "w1", "--target", "w2", "--output"]
    assert main([*command, str(tmp_path / "a.png")]) == 0


def test_wrong_use(save: Save, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    biarn = save("biarn")
    cut = tmp_path / "cut.pt"
    cut.write_bytes(Path(biarn).read_bytes()[:3000])
    small = tmp_path / "small"
    small.mkdir()
    for language in ("src", "tgt"):
        (small / f"dict.{language}.txt").write_text("w1 1\nw2 1\n")
    lm = save("lm", "transformer_lm", "--decoder-embed-dim", "16", task="language_modeling")
    for arguments, message in (
        ([str(tmp_path / "none.pt")], "no file or folder"),
        ([str(cut)], "truncated or damaged"),
        ([biarn, "--data", str(tmp_path / "data")], "data (no such folder); give data=FOLDER"),
        ([biarn, "-s", "en"], "no dict.en.txt"),
        ([biarn, "--data", str(small)], "give data=FOLDER, --data"),
        ([biarn, "--data", str(small)], "its vocabulary has another size"),
        ([save("stock"), "--data", str(small)], "does not fit, perhaps because the dictionaries"),
        ([lm], "look: expected a model with a source"),
        (
            [save("birnn"), "--show", "steps"],
            "--show steps: it has no recurrence encoder that attends",
        ),
        ([biarn, "--layer", "2"], "--layer 2: encoder has layers 0 to 1"),
        ([biarn, "--head", "2"], "--head 2: encoder has heads 0 to 1"),
        ([biarn, "--source", "\t"], "--source has no words"),
        ([biarn, "--source", "w1 " * 1024], "limit of 1024 tokens: number 0 has 1025"),
        ([biarn, "--beam", "0"], "--beam 0: expected at least 1"),
        ([biarn, "--target", "\u3000"], "--target has no words"),
        ([biarn, "--bpe", "sentencepiece", "--sentencepiece-model", "none"], "none: no such file"),
        ([biarn, "--bpe", "sentencepiece", "--sentencepiece-model", str(cut)], "cannot be built"),
        ([biarn, "--bpe-codes", str(cut)], "no option 'bpe_codes' (--bpe-codes)"),
    ):
        output = ["--source", "w1", "--max-len-b", "5", "--output", str(tmp_path / "a.png")]
        assert main(["plot", "attention", arguments[0], *output, *arguments[1:]]) == 2, message
        assert message in capsys.readouterr().err
    assert main(["plot", "attention", biarn, "--source", "w1", "--output", "a.jpg"]) == 2
    assert "ends in .png, .pdf or .svg" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


@pytest.mark.slow
def test_other_shapes_of_the_host(draw: Callable[..., dict[str, Any]], save: Save) -> None:
    """A BART's learned positions, norms before the sub-layers."""
    save("bart", "transformer_biarn", *PLAIN, *BART_FLAGS)
    shown = draw("bart", "--target", "w1")["panels"]
    assert [p["kind"] for p in shown] == ["encoder", "decoder", "cross"]
    norms = ["--encoder-normalize-before", "--decoder-normalize-before"]
    save("pre", "transformer_biarn", *norms, *GATED)
    shown = draw("pre", "--show", "cross", "gate", "--layer", "all", "--head", "all")["panels"]
    assert [p["kind"] for p in shown] == ["cross"] * 4 + ["gate"] * 2
