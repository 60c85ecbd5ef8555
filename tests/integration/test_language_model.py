"""A language model in fairseq's commands: train, eval-lm, generate, resume, checkpoints."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import LANGUAGE_MODELS
from tests.running import USER_DIR, assert_identical, saved, saved_weights, update_losses
from tests.unit.test_language_model import SMALL_LM

Cli = Callable[..., str]

TRAINING = [
    *SMALL_LM, *"--task language_modeling --tokens-per-sample 32 --sample-break-mode eos".split(),
    *"--optimizer adam --lr 0.01 --lr-scheduler inverse_sqrt --warmup-updates 10".split(),
    *"--criterion cross_entropy --max-tokens 300 --cpu --seed 1 --num-workers 0".split(),
    *"--log-format simple --log-interval 1 --share-decoder-input-output-embed".split(),
]  # fmt: skip


@pytest.fixture(scope="module")
def text(corpus: Path, tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """The preprocessed source sentences of the corpus."""
    folder = tmp_path_factory.mktemp("text") / "bin"
    sets = [f"--{name}pref={corpus / (name + '.src')}" for name in ("train", "valid", "test")]
    cli("preprocess", "--only-source", *sets, "--destdir", folder)
    return folder


def train(cli: Cli, text: Path, folder: Path, arch: str, *flags: Any) -> str:
    return cli(
        "train", text, "--user-dir", USER_DIR, "--arch", arch, *TRAINING, "--save-dir", folder,
        *flags,
    )  # fmt: skip


@pytest.fixture(scope="module", params=LANGUAGE_MODELS)
def model(
    request: pytest.FixtureRequest, text: Path, tmp_path_factory: pytest.TempPathFactory, cli: Cli
) -> Path:
    """The folder of a model trained for 60 updates."""
    folder = tmp_path_factory.mktemp("lm")
    log = train(cli, text, folder, request.param, "--max-update", 60, "--save-interval", 2)
    losses = list(update_losses(log).values())
    assert losses[-1] < losses[0] - 1
    return folder


def perplexity(log: str) -> float:
    return float(re.findall(r"Perplexity: ([\d.]+)", log)[-1])


def test_eval_lm_is_the_validation(model: Path, text: Path, cli: Cli) -> None:
    """Both commands give the same perplexity, which is better than guessing among 24 symbols."""
    checkpoint = model / "checkpoint_last.pt"
    how = ["--user-dir", USER_DIR, "--path", checkpoint, "--batch-size", 7, "--cpu"]
    log = cli(
        "eval_lm", text, *how, "--gen-subset", "valid", "--sample-break-mode", "eos",
        "--num-workers", 0,
    )  # fmt: skip
    found = perplexity(log)
    assert 1 < found < 24
    log = cli(
        "validate", text, *how, "--task", "language_modeling", "--sample-break-mode", "eos",
        "--tokens-per-sample", 32, "--num-workers", 0,
    )  # fmt: skip
    validated = float(re.findall(r"\| valid on 'valid' subset .*?\| ppl ([\d.]+)", log)[-1])
    assert found == pytest.approx(validated, abs=0.011)  # both have two decimals


@pytest.mark.parametrize("beam", [1, 4])
def test_generate_continues_a_prefix(model: Path, text: Path, cli: Cli, beam: int) -> None:
    """Incremental generation gives hypotheses the same scores as the model without it."""
    out = cli(
        "generate", text, "--user-dir", USER_DIR, "--task", "language_modeling", "--path",
        model / "checkpoint_last.pt", "--sample-break-mode", "eos", "--beam", beam, "--cpu",
        "--prefix-size", 2, "--batch-size", 6, "--max-len-b", 14, "--num-workers", 0,
        "--lenpen", 0, "--gen-subset", "test",
    )  # fmt: skip
    hypotheses = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.M)
    assert len(hypotheses) == 20
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    models, _, task = load_model_ensemble_and_task([str(model / "checkpoint_last.pt")])
    words = task.source_dictionary
    for _, score, line in hypotheses:
        tokens = words.encode_line(line, add_if_not_exist=False).long()
        given = torch.cat([tokens[-1:], tokens[:-1]])
        with torch.no_grad():
            logprobs = models[0].eval()(given[None])[0].log_softmax(-1)[0]
        whole = logprobs.gather(1, tokens[:, None]).sum().item() / 0.6931471805599453
        assert float(score) == pytest.approx(whole, abs=1e-4)


def test_resumed_equals_uninterrupted(model: Path, text: Path, cli: Cli, tmp_path: Path) -> None:
    arch = torch.load(model / "checkpoint_last.pt", weights_only=True)["cfg"]["model"]["_name"]
    train(cli, text, tmp_path, arch, "--max-update", 25, "--save-interval", 2)
    train(cli, text, tmp_path, arch, "--max-update", 60, "--save-interval", 2)
    assert_identical(saved(tmp_path), saved(model))


@pytest.mark.slow
def test_hydra_form(text: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli(
        "hydra_train", "task=language_modeling", f"task.data={text}", "task.tokens_per_sample=32",
        "model=rsa_transformer_lm", "model.decoder_embed_dim=16", "model.decoder_layers=1",
        "model.decoder_attention_heads=2", 'model.rsa_heads="0,1,1,0,0,0"', "hydra.run.dir=.",
        "criterion=cross_entropy", "optimizer=adam", "lr_scheduler=fixed", "common.cpu=true",
        "optimization.lr=[0.01]", "optimization.max_update=2", "dataset.max_tokens=300",
        "dataset.num_workers=0", "hydra.output_subdir=null",
    )  # fmt: skip
    weights = saved_weights(tmp_path / "checkpoints" / "checkpoint_last.pt")
    mixture = "decoder.layers.0.self_attn.mixture."
    parameters = {n.removeprefix(mixture) for n in weights if n.startswith(mixture)}
    assert parameters == {"mu", "nu", "theta"}


def test_stock_checkpoint_starts_it(text: Path, cli: Cli, tmp_path: Path) -> None:
    train(cli, text, tmp_path / "stock", "transformer_lm", "--max-update", 20)
    stock = tmp_path / "stock" / "checkpoint_last.pt"
    log = train(
        cli, text, tmp_path / "rsa", "rsa_transformer_lm", "--finetune-from-model", stock,
        "--lr", 0, "--lr-scheduler", "fixed", "--max-update", 1,
    )  # fmt: skip
    assert len(re.findall("initialised fresh", log)) == 2
    found = saved_weights(tmp_path / "rsa" / "checkpoint_last.pt")
    for name, value in saved_weights(stock).items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "sgd"],
        ["--optimizer", "sgd", "--bf16"],
        ["--optimizer", "adamw_fused", "--adam-eps", "1"],
    ],
    ids=["sgd", "bf16", "adamw_fused"],
)
def test_no_weight_decay_on_the_matrices(
    text: Path, cli: Cli, tmp_path: Path, flags: list[str]
) -> None:
    """With gradients clipped to zero, only weight decay changes parameters, but not these."""
    name = "decoder.layers.0.self_attn.mixture"
    results = []
    for decay in (0.0, 0.5):
        folder = tmp_path / str(decay)
        train(
            cli, text, folder, "rsa_transformer_lm", "--weight-decay", decay, "--max-update", 1,
            "--lr", 0.1, "--lr-scheduler", "fixed", "--warmup-updates", 0,
            "--clip-norm", 1e-20, *flags,
        )  # fmt: skip
        results.append(saved_weights(folder / "checkpoint_last.pt"))
    plain, decayed = results
    assert torch.equal(decayed[f"{name}.eta"], plain[f"{name}.eta"])
    assert torch.equal(decayed[f"{name}.mu"], plain[f"{name}.mu"])
    other = "decoder.layers.0.self_attn.q_proj.weight"
    found, expected = decayed[other].float(), 0.95 * plain[other].float()
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)
