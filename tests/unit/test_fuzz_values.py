"""Texts that fairseq would give to eval(), as attacks: on the command line and in checkpoints.

Nothing runs, nothing fills the memory, and each ends at once in one error.
"""

import time
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fairseq.utils
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.fconv import FConvModel
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import OmegaConf

from fairseq_recur.compat.literals import evaluate
from fairseq_recur.errors import ConfigError
from tests.conftest import SMALL
from tests.freeze import FOLDER, files
from tests.fuzzing import system, within, words_of_the_tests
from tests.running import run_command
from tests.unit.test_compat_checkpoints import stock_state

CODE: dict[str, str] = {
    "import": "__import__('os').system('touch {trace}')",
    "import in a list": "[(512, 3)] + [__import__('pathlib').Path('{trace}').touch()]",
    "open": "open('{trace}', 'w').close()",
    "exec": 'exec(\'open("{trace}", "w").close()\')',
    "lambda": "(lambda: open('{trace}', 'w'))()",
    "comprehension": "[open('{trace}', 'w') for _ in (1,)]",
    "f-string": 'f\'{{open("{trace}", "w")}}\'',
    "walrus": "(f := open)('{trace}', 'w')",
    "slice": "[1][open('{trace}', 'w') is None:]",
    "starred": "[*[open('{trace}', 'w')]]",
    "conditional": "1 if open('{trace}', 'w') else 2",
    "keyword": "dict(a=open('{trace}', 'w'))",
    "attributes": (
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen' "
        "or c.__name__ == 'catch_warnings'][0]()._module.__builtins__['open']('{trace}', 'w')"
    ),
}
"""Each makes a file where eval() sees it."""

SIZE: dict[str, str] = {
    "power": "9**9**9",
    "shift": "1 << 10**10",
    "list": "[1] * 100000000",
    "list from the left": "100000000 * [1]",
    "list in steps": "[1] * 9999 * 9999",
    "nested lists": "[[[1] * 999] * 999] * 999",
    "text": "'a' * 1000000000",
    "sums": "+".join(["[1] * 1000"] * 150),
    "number": "9" * 5000,
    "product": "*".join(["9" * 4000] * 3),
    "parentheses": "(" * 100_000 + ")" * 100_000,
    "open parentheses": "(" * 150,
    "brackets": "[" * 900,
    "signs": "-" * 100_000 + "1",
    "few signs": "-" * 1_999 + "1",
    "chain": "1" + "+1" * 100_000,
    "10 MB of numbers": "1," * 5_000_000,
    "10 MB of text": "'" + "a" * 10_000_000 + "'",
    "10 MB of digits": "9" * 10_000_000,
}
"""What takes minutes, gigabytes, or the parser's or the interpreter's stack."""

OTHER: dict[str, str] = {
    "name": "os",
    "attribute": "().__class__",
    "subscript": "[1][0]",
    "comparison": "1 < 2",
    "statement": "import os",
    "two lines": "1\n2",
    "null": "1\0",
    "half a character": "\udcff",
    "nothing": "",
    "division": "1 / 0",
    "number and text": "1 + 'a'",
    "unhashable": "{[1]}",
    "dictionary in a dictionary": "{**{}}",
}
ATTACKS: dict[str, str] = {**CODE, **SIZE, **OTHER}


@contextmanager
def refused(trace: Path, seconds: float = 2) -> Iterator[None]:
    """One short error appears quickly; nothing runs, and hardly any memory is used."""
    before = time.process_time()
    with within(), measuring_memory() as peak:
        with pytest.raises(ConfigError, match="Nothing in it was executed") as caught:
            yield
    assert time.process_time() - before < seconds
    assert peak() < 100
    assert not trace.exists()
    assert len(str(caught.value)) < 600


@contextmanager
def measuring_memory() -> Iterator[Callable[[], float]]:
    """The most memory that Python's own objects take in the block, in MB.

    The peak of the process would hide all that is less than an earlier test has taken.
    """
    found: list[int] = []
    tracemalloc.start()
    try:
        yield lambda: found[0] / 2**20
    finally:
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def test_memory_is_measured_after_more_was_taken() -> None:
    for megabytes in (400, 200):
        with measuring_memory() as peak:
            eval(SIZE["list"].replace("100000000", str(megabytes * 2**17)))
        assert peak() == pytest.approx(megabytes, rel=0.01)


def test_long_texts_of_a_recipe_are_read() -> None:
    """The sampling weights of 500 language pairs, as multilingual recipes give them."""
    weights = {f"main:{n:03d}_XX-es_XX": 0.2 for n in range(500)}
    assert fairseq.utils.eval_str_dict(str(weights)) == evaluate(str(weights)) == weights


@pytest.mark.parametrize("name", ATTACKS)
def test_a_text(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with refused(trace):
        evaluate(attack(name, trace))


def attack(name: str, trace: Path) -> str:
    """The text of an attack."""
    return CODE[name].format(trace=trace) if name in CODE else ATTACKS[name]


@pytest.mark.parametrize("name", CODE)
def test_the_attacks_work_where_nothing_stops_them(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    eval(attack(name, trace), {})
    assert trace.exists()


@pytest.mark.parametrize(
    "text, value",
    [
        ("[(512, 3)] * 20 + [(1024, 1)]", [(512, 3)] * 20 + [(1024, 1)]),
        ("(0.9, 0.98)", (0.9, 0.98)),
        ("0.9, 1 - 0.02", (0.9, 0.98)),
        (" {'name': 'linformer', 'k': -128 / 2} ", {"name": "linformer", "k": -64.0}),
        ("2 * 3 * [True, None]", [True, None] * 6),
        ("{1, 2}", {1, 2}),
        ("+1", 1),
        ("'a' + \"b\"", "ab"),
    ],
)
def test_what_options_say_is_read(text: str, value: Any) -> None:
    assert evaluate(text) == value == eval(text.strip())


def fconv(text: str) -> Any:
    """fairseq's convolutional model, whose layers are such a text."""
    args = Namespace(
        encoder_layers=text, decoder_layers="[(8, 3)]", decoder_attention="True", dropout=0.1,
        encoder_embed_dim=8, decoder_embed_dim=8, decoder_out_embed_dim=8,
        encoder_embed_path=None, decoder_embed_path=None, max_source_positions=9,
        max_target_positions=9, share_input_output_embed=False,
    )  # fmt: skip
    words = words_of_the_tests()
    return FConvModel.build_model(args, Namespace(source_dictionary=words, target_dictionary=words))


def adam(text: str) -> Any:
    """fairseq's Adam, whose betas are such a text."""
    cfg = OmegaConf.structured(FairseqAdamConfig(adam_betas=text))
    cfg.lr, cfg.tpu = [0.1], False
    return FairseqAdam(cfg, [torch.nn.Parameter(torch.ones(1))])


def xformers(text: str) -> Any:
    """A model of ours with a configuration of xFormers, from the command line."""
    came = system("rsa").attempt([f"--encoder-xformers-att-config={text}"])
    raise ConfigError(came)


SOME = ["import", "attributes", "lambda", "f-string", "power", "list", "sums", "signs",
        "10 MB of numbers"]  # fmt: skip


def test_the_places_use_their_texts() -> None:
    assert fconv("[(8, 3)] * 2").encoder.num_attention_layers == 1
    assert adam("(0.5, 0.6)").optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    with pytest.raises(ImportError, match="Please install xFormers"):
        xformers("{'name': 'linformer'}")


@pytest.mark.parametrize("name", SOME[:-1])  # a command line has no room for 10 MB
@pytest.mark.parametrize("use", [fconv, adam, xformers])
def test_where_options_are_used(use: Callable, name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with refused(trace):
        use(attack(name, trace))


@pytest.mark.parametrize("arch", ["fconv", "transformer"])
def test_on_the_command_line(arch: str, corpus: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    flag = {"fconv": "--encoder-layers", "transformer": "--adam-betas"}[arch]
    with pytest.raises(ConfigError, match="Nothing in it was executed"):
        run_command(
            "train", corpus / "bin", "--arch", arch, "--optimizer", "adam", "--lr", 1, "--cpu",
            "--max-tokens", 999, f"{flag}={attack('import', trace)}", "--save-dir", tmp_path,
            *(SMALL if arch != "fconv" else ()),
        )  # fmt: skip
    assert not trace.exists()


def saved(path: Path, form: str, **model: Any) -> None:
    """A checkpoint that fairseq and this package load, but for the options of its model."""
    data = {"data": str(FOLDER), "source_lang": "src", "target_lang": "tgt"}
    state: dict[str, Any] = stock_state()
    if form == "args":
        state["args"] = Namespace(task="translation", criterion="cross_entropy", **data, **model)
        state["cfg"] = None
    else:
        task = {"_name": "translation", **data, "left_pad_source": True, "left_pad_target": False}
        name = model.pop("arch")
        state["cfg"] = {"model": {"_name": name, **model}, "task": task}
    torch.save(state, path)


def changed(path: Path, **model: Any) -> None:
    """A frozen checkpoint of ours with other options of its model."""
    state = torch.load(files("rsa_transformer")["checkpoint"], weights_only=True)
    state["cfg"]["task"]["data"] = str(FOLDER)
    state["cfg"]["model"].update(model)
    torch.save(state, path)


@pytest.mark.parametrize(
    "place, name",
    [  # what is old takes fairseq seconds, so once
        *((place, name) for place in ("fairseq's", "ours") for name in SOME),
        ("fairseq's old", "import"),
    ],
)
def test_in_a_checkpoint(place: str, name: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    if place == "ours":
        changed(path, encoder_xformers_att_config=attack(name, trace))
    else:
        form = "cfg" if place == "fairseq's" else "args"
        saved(path, form, arch="fconv", encoder_layers=attack(name, trace))
    # fairseq's own conversion of old options, before anything is evaluated, takes two seconds.
    with refused(trace, seconds=10 if place == "fairseq's old" else 2):
        checkpoint_utils.load_model_ensemble_and_task([str(path)])
