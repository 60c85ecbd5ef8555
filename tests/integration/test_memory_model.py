"""Language models with a memory in fairseq's commands: train, resume, validate, evaluate, learn."""

import random
import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask

from fairseq_recur import from_pretrained
from fairseq_recur.cli import main
from fairseq_recur.modules.stream_memory import StreamMemory, is_memory
from fairseq_recur.tasks.streams import SET, StreamLanguageModelingTask
from tests.conftest import fast_or_slow
from tests.distributed.several import run_plan
from tests.distributed.test_presets_by_several import assert_close, assert_moved, enlarge
from tests.running import (
    USER_DIR,
    assert_half_precision_resumes,
    assert_identical,
    saved,
    saved_weights,
    update_losses,
)
from tests.unit.test_memory_model import (
    MEMORY_STRUCTURES,
    in_state,
    is_adaptive,
    shrunk,
    small,
)
from tests.unit.test_streams import options

Cli = Callable[..., str]
PERIOD = 6
STREAMS = ["--task", "language_modeling_with_memory"]
TRAINING = [
    *STREAMS, *"--optimizer adam --lr 0.003 --lr-scheduler fixed --cpu".split(),
    *"--criterion cross_entropy --seed 1 --num-workers 0 --log-format simple".split(),
    *"--log-interval 1 --no-epoch-checkpoints --batch-size 6".split(),
]  # fmt: skip

ADAPTIVE = (
    "--criterion adaptive_loss --ddp-backend legacy_ddp "
    "--adaptive-input-cutoff 6,9 --adaptive-softmax-cutoff 6,9"
).split()
"""Flags with which models train that have an adaptive softmax, and its bands of `WORDS`."""

OF_POSITIONS = [
    arch
    for arch in MEMORY_STRUCTURES
    if ARCH_MODEL_REGISTRY[arch].config_class().decoder_memory == "xl"
]
"""Models that keep positions alone; tests/integration/test_learning.py has those with a state."""

HALF = "--memory-efficient-fp16 --fp16-init-scale 4 --dropout 0.1".split()
"""Flags of a training in half precision that overflows nowhere."""

WORDS = [f"w{number}" for number in range(8)]
"""The dictionary after its four symbols."""


def repeating(rng: random.Random, words: int, period: int) -> str:
    """Words that mostly repeat the one *period* places before; the pattern drifts."""
    found: list[int] = []
    for place in range(words):
        again = place >= period and rng.random() < 0.9
        found.append(found[-period] if again else rng.randrange(8))
    return " ".join(f"w{word}" for word in found)


def preprocessed(folder: Path, number: int, cli: Cli) -> Path:
    """*number* lines of 150 words to train on, and one each to validate and to test."""
    rng = random.Random(1)
    for name, count in (("train", number), ("valid", 1), ("test", 1)):
        lines = (repeating(rng, 150, PERIOD) + "\n" for _ in range(count))
        (folder / name).write_text("".join(lines))
    return preprocess(folder, ("train", "valid", "test"), cli)


def preprocess(folder: Path, names: Sequence[str], cli: Cli) -> Path:
    """Preprocess the sets of a folder with the dictionary of `WORDS`."""
    (folder / "words").write_text("".join(f"{word} 1\n" for word in WORDS))
    sets = [f"--{name}pref={folder / name}" for name in names]
    sets += ["--srcdict", str(folder / "words")]
    cli("preprocess", "--only-source", *sets, "--destdir", folder / "bin")
    return folder / "bin"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    return preprocessed(tmp_path_factory.mktemp("text"), 4, cli)


def arguments(text: Path, folder: Path, arch: str, *more: Any) -> list[str]:
    words = [text, "--user-dir", USER_DIR, "--arch", arch, *small(arch), *shrunk(arch), *TRAINING]
    own = ADAPTIVE if is_adaptive(arch) else []
    return [str(word) for word in (*words, *own, "--save-dir", folder, *more)]


def test_only_the_set_to_train_on_is_cut(text: Path) -> None:
    """Whatever its name; every token of another set is read, also of the one called train."""
    task = StreamLanguageModelingTask.setup_task(options(data=str(text), dataset_impl=None))
    task.load_dataset("train")
    task.load_dataset("valid", combine=True, data_selector=None)
    assert task.dataset("train").text.whole and not task.dataset("valid").text.whole


def test_each_set_begins_with_an_empty_memory(text: Path) -> None:
    """Its positions are far from those of the other sets, although all begin with stream 0."""
    task = StreamLanguageModelingTask.setup_task(options(data=str(text), dataset_impl=None))
    first = {}
    for name in ("train", "valid", "test"):
        task.load_dataset(name)
        first[name] = task.dataset(name).text.number
    memory, inputs = StreamMemory(1), [torch.zeros(4, 1, 2)]
    for one, other in permutations(first.values(), 2):
        assert abs(one - other) >= SET
        memory.keep(torch.tensor([one]), inputs, None, 4)
        assert [memory.read(torch.tensor([other + n]), 4)[0] for n in (0, 4)] == [None] * 2
        assert memory.read(torch.tensor([one + 4]), 4)[0] is not None


def search_in_a_batch_is_search_alone(model: Any) -> None:
    """With beams, over the end of a segment; scores are those of teacher forcing."""
    texts = ["w1 w2", "w3 w4 w5 w6 w7 w1 w2"]
    both = model.hypotheses(texts, beam=4, max_len_b=14)
    for text, (best, *_) in zip(texts, both):
        alone = model.hypotheses([text], beam=4, max_len_b=14)[0][0]
        assert best.text == alone.text and best.score == pytest.approx(alone.score, abs=1e-5)
        (forced,) = model.score([best.text])
        assert sum(best.token_scores) == pytest.approx(sum(forced.token_scores), abs=1e-4)


@pytest.mark.parametrize("arch", [fast_or_slow(a, a, a == "rsa_xl_lm") for a in MEMORY_STRUCTURES])
def test_resumes_as_if_never_stopped(arch: str, text: Path, cli: Cli, tmp_path: Path) -> None:
    """Within an epoch of 25 batches and over its end, with dropout; then all that reads it."""
    flags = ["--dropout", 0.1, "--max-update"]
    at_once = cli("train", *arguments(text, tmp_path / "once", arch, *flags, 30))
    cli("train", *arguments(text, tmp_path / "two", arch, *flags, 11))
    resumed = cli("train", *arguments(text, tmp_path / "two", arch, *flags, 30))
    losses = update_losses(at_once)
    assert update_losses(resumed) == {n: losses[n] for n in range(12, 31)}
    once, two = (saved_weights(tmp_path / n / "checkpoint_last.pt") for n in ("once", "two"))
    assert_identical(saved(tmp_path / "two"), saved(tmp_path / "once"))
    assert once["decoder.memory.states"].size(1) == (0 if in_state(arch) else 6)
    best = saved_weights(tmp_path / "once" / "checkpoint_best.pt")
    assert best.keys() == {name for name in once if not is_memory(name)} < once.keys()

    checkpoint = tmp_path / "once" / "checkpoint_last.pt"
    how = ["--user-dir", USER_DIR, "--path", checkpoint, "--cpu", "--num-workers", 0, *STREAMS]
    how += ["--tokens-per-sample", 4, "--batch-size", 3]
    log = cli("eval_lm", text, *how, "--gen-subset", "test")
    assert "Evaluated 151 tokens" in log  # of 3 streams of 50 tokens, and one more
    found = float(re.findall(r"Perplexity: ([\d.]+)", log)[-1])
    log = cli("validate", text, *how, "--valid-subset", "test")
    validated = float(re.findall(r"\| valid on 'test' subset .*?\| ppl ([\d.]+)", log)[-1])
    assert found == pytest.approx(validated, abs=0.011)  # both have two decimals
    model = from_pretrained(tmp_path / "once", "checkpoint_last.pt", data=text, device="cpu")
    given = model.score(["w1 w2 w3 w4 w5 w6 w7 w1 w2 w3", "w5"])  # and the end of the line
    words, log_probs = [model.target.dictionary.index(x) for x in given[0].tokens], []
    for first in range(0, 11, 4):  # the segments of training, with the memory carried
        part = torch.tensor([[2, *words[:-1]][first : first + 4]])
        logits, _ = model.model(part, starts=torch.tensor([first]))
        aims = torch.tensor(words[first : first + 4])[:, None]
        given_words = model.model.get_normalized_probs((logits, None), log_probs=True)
        log_probs.append(given_words[0].gather(1, aims))
    total = torch.cat(log_probs).sum().item()
    search_in_a_batch_is_search_alone(model)
    assert len(log_probs) == 3 and given[0].log_probability == pytest.approx(total, rel=1e-4)
    if not in_state(arch):
        overrides = "{'memory_length': 20, 'memory_same_length': True, 'xl_clamp_length': 9}"
        cli("eval_lm", text, *how, "--gen-subset", "test", "--model-overrides", overrides)
    copies = [str(tmp_path / name / "checkpoint_last.pt") for name in ("once", "two")]
    average = tmp_path / "average.pt"
    assert main(["average", "--inputs", *copies, "--output", str(average)]) == 0
    averaged = saved_weights(average)
    assert averaged.keys() == best.keys()
    assert all(torch.equal(averaged[name], once[name]) for name in averaged)


@pytest.mark.parametrize(
    "arch", [fast_or_slow(a, a, a in ("xl_lm", "brt_lm", "tlb_lm")) for a in MEMORY_STRUCTURES]
)
def test_half_precision_resumes_as_if_never_stopped(
    arch: str, text: Path, cli: Cli, tmp_path: Path
) -> None:
    """With weights, positions and states in float16."""

    def train(folder: str, updates: int) -> dict[int, float]:
        flags = [*HALF, "--disable-validation", "--max-update", updates]
        return update_losses(cli("train", *arguments(text, tmp_path / folder, arch, *flags)))

    assert_half_precision_resumes(train, tmp_path)


def test_only_what_resumes_has_the_memory(text: Path, cli: Cli, tmp_path: Path) -> None:
    """Not the best checkpoint, and none at the end of an epoch, whose next one begins anew."""
    every = "--save-interval-updates 20 --keep-best-checkpoints 1 --max-update".split()
    words = [w for w in arguments(text, tmp_path, "xl_lm_tiny") if w != "--no-epoch-checkpoints"]

    def found(updates: int) -> dict[str, bool]:
        cli("train", *words, *every, updates)
        files = {f.name: any(map(is_memory, saved_weights(f))) for f in tmp_path.glob("*.pt")}
        return {re.sub("loss_.*", "", name): memory for name, memory in files.items()}

    plain = {"checkpoint_best.pt": False, "checkpoint.best_": False}
    assert found(20) == {"checkpoint_1_20.pt": True, "checkpoint_last.pt": True, **plain}
    plain |= {"checkpoint_last.pt": False, "checkpoint1.pt": False}
    assert found(25) == {"checkpoint_1_20.pt": True, **plain}


def test_a_preset_that_shares_its_embeddings_trains_on_characters(
    text: Path, cli: Cli, tmp_path: Path
) -> None:
    """Without the sharing; what it saves can be evaluated."""
    flags = ["--character-embeddings", "--character-filters", "[(1, 8), (2, 8)]"]
    words = arguments(text, tmp_path, "xl_lm_tiny", *flags, "--max-update", 3)
    losses = update_losses(cli("train", *words, "--disable-validation"))
    assert losses[3] < losses[1]
    path = tmp_path / "checkpoint_last.pt"
    assert "decoder.embed_tokens.char_embeddings.weight" in saved_weights(path)
    cli("eval_lm", text, "--user-dir", USER_DIR, *STREAMS, "--path", path, "--cpu", "--batch-size",
        2, "--num-workers", 0)  # fmt: skip


def test_amp_repeats_batches_with_the_memory_of_the_first_time(
    text: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two overflows in the third update, of two batches, the training is what it was."""
    flags = "--amp --update-freq 2 --max-update 4 --disable-validation --dropout 0.1".split()
    cli("train", *arguments(text, tmp_path / "plain", "rsa_xl_lm_tiny", *flags))
    clip, step, norms = AMPOptimizer.clip_grad_norm, AMPOptimizer.step, []

    def overflowing(optimizer: AMPOptimizer, *args: Any, **named: Any) -> torch.Tensor:
        norms.append(clip(optimizer, *args, **named))
        return norms[-1] * (float("inf") if len(norms) in (3, 4) else 1)

    def stepping(optimizer: AMPOptimizer) -> None:
        if len(norms) not in (3, 4):
            step(optimizer)

    monkeypatch.setattr(AMPOptimizer, "clip_grad_norm", overflowing)
    monkeypatch.setattr(AMPOptimizer, "step", stepping)
    cli("train", *arguments(text, tmp_path / "repeated", "rsa_xl_lm_tiny", *flags))
    assert len(norms) == 4 + 2 and norms[2] == norms[3] == norms[4]
    plain, repeated = (
        saved_weights(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "repeated")
    )
    assert plain.keys() == repeated.keys()
    assert all(torch.equal(repeated[name], plain[name]) for name in plain)


@pytest.mark.parametrize("arch", ["xl_lm_tiny", "brt_lm_tiny"])
def test_validation_repeats_a_batch_with_the_memory_of_the_first_time(
    arch: str, text: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fairseq does when the device's memory was short."""
    step, losses = FairseqTask.valid_step, []

    def short(task: FairseqTask, *args: Any, **named: Any) -> Any:
        out = step(task, *args, **named)
        losses.append(float(out[0]))
        if len(losses) == 2:
            raise RuntimeError("out of memory")
        return out

    monkeypatch.setattr(FairseqTask, "valid_step", short)
    cli("train", *arguments(text, tmp_path, arch, "--max-update", 1, "--no-save"))
    assert len(losses) > 2 and losses[2] == losses[1]


@pytest.mark.slow
def test_checkpoints_of_one_training_can_be_averaged(text: Path, cli: Cli, tmp_path: Path) -> None:
    """Their memories differ, in their positions too."""
    for updates in (1, 3):
        folder = tmp_path / str(updates)
        cli("train", *arguments(text, folder, "xl_lm_tiny", "--max-update", updates,
                                "--disable-validation"))  # fmt: skip
    files = [tmp_path / str(updates) / "checkpoint_last.pt" for updates in (1, 3)]
    output = str(tmp_path / "average.pt")
    assert main(["average", "--inputs", *map(str, files), "--output", output]) == 0
    averaged, first, second = (saved_weights(file) for file in (output, *files))
    name = "decoder.layers.0.fc1.weight"
    torch.testing.assert_close(averaged[name], (first[name] + second[name]) / 2)
    assert any(map(is_memory, first)) and not any(map(is_memory, averaged))


@pytest.mark.slow
def test_a_moving_average_leaves_out_the_memory(text: Path, cli: Cli, tmp_path: Path) -> None:
    more = ["--max-update", 3, "--save-interval-updates", 1, "--disable-validation"]
    more += ["--store-ema", "--ema-decay", 0.5]
    cli("train", *arguments(text, tmp_path, "xl_lm_tiny", *more))
    files = [next(tmp_path.glob(f"checkpoint_*_{updates}.pt")) for updates in (2, 3)]
    before, after = (torch.load(file, weights_only=False) for file in files)
    weights, averages = after["model"], after["extra_state"]["ema"]
    assert any(map(is_memory, weights)) and not any(map(is_memory, averages))
    for name, last in before["extra_state"]["ema"].items():
        names = sum(torch.equal(x, weights[name]) for x in weights.values())
        expected = weights[name] + (last - weights[name]) / 2**names  # fairseq: once for each name
        torch.testing.assert_close(averages[name], expected)


def test_a_model_without_memory_is_refused(text: Path, cli: Cli, tmp_path: Path) -> None:
    words = arguments(text, tmp_path, "rsa_transformer_lm", "--max-update", 1)
    at = words.index("--memory-length")
    with pytest.raises(Exception, match="needs a model with a memory, and RsaTransformerLmModel"):
        cli("train", *words[:at], *words[at + 2 :])


@pytest.mark.slow
@pytest.mark.parametrize("arch", MEMORY_STRUCTURES)
def test_two_processes_are_one_also_resumed(
    arch: str, text: Path, cli: Cli, tmp_path: Path
) -> None:
    """Each has half of the streams; a checkpoint has the memories of both.

    --broadcast-buffers, with which the processes get the buffers of the first, leaves them alone.
    """
    sgd = ["--optimizer", "sgd", "--lr", 0.05, "--dropout", 0, "--disable-validation"]
    cli("train", *arguments(text, tmp_path / "first", arch, *sgd, "--max-update", 1))
    sgd += ["--finetune-from-model", enlarge(tmp_path / "first" / "checkpoint_last.pt")]
    cli("train", *arguments(text, tmp_path / "one", arch, *sgd, "--max-update", 9))
    half = [*sgd, "--broadcast-buffers", "--batch-size", 3, "--max-update"]
    parts = (("early", 5), ("two", 5), ("two", 9), ("mixed", 5))
    plan = [arguments(text, tmp_path / name, arch, *half, updates) for name, updates in parts]
    run_plan(2, plan, tmp_path)
    # One process goes on in the streams of two.
    cli("train", *arguments(text, tmp_path / "mixed", arch, *sgd, "--max-update", 9))
    one, early = (saved_weights(tmp_path / n / "checkpoint_last.pt") for n in ("one", "early"))
    assert_moved(one, early, 1e-5)
    for folder in ("two", "mixed"):
        found = saved_weights(tmp_path / folder / "checkpoint_last.pt")
        assert_close(found, one, folder)
        assert found["decoder.memory.starts"].size() == (6,)


@pytest.mark.slow
@pytest.mark.parametrize("arch", OF_POSITIONS)
def test_a_memory_learns_what_a_segment_does_not_hold(arch: str, cli: Cli, tmp_path: Path) -> None:
    """A word repeats the one six places before, and a segment has four."""
    text, losses = preprocessed(tmp_path, 60, cli), {}
    for length in (0, 12):
        folder = tmp_path / str(length)
        flags = ["--memory-length", length, "--decoder-ffn-embed-dim", 64, "--lr", 0.005]
        flags += ["--clip-norm", 0.25]
        if arch.startswith("rsa_"):  # with a third, regular one, little was learnt in 3000 updates
            flags += (
                "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 2,3 --decoder-attention-heads 2".split()
            )
        sizes = [f for n in ("embed", "input", "output") for f in (f"--decoder-{n}-dim", 32)]
        more = [*flags, *sizes, "--max-update", 1500, "--disable-validation"]
        cli("train", *arguments(text, folder, arch, *more))
        log = cli(
            "validate", text, "--user-dir", USER_DIR, "--path", folder / "checkpoint_last.pt",
            "--cpu", "--num-workers", 0, *STREAMS, "--tokens-per-sample", 4, "--batch-size", 1,
        )  # fmt: skip
        losses[length] = float(re.findall(r"\| valid on .*?\| loss ([\d.]+)", log)[-1])
    assert losses[12] < losses[0] - 0.5
