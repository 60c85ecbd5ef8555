"""The task summarization: its options, its texts, and how ROUGE is added up."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary, ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_recur.errors import ConfigError
from fairseq_recur.scoring.rouge import VARIANTS, Rouge
from fairseq_recur.search import search_options
from fairseq_recur.tasks.eval_rouge import COUNT, RougeEvaluation, log_rouge
from fairseq_recur.tasks.summarization import STATE, SummarizationTask
from fairseq_recur.tasks.summarization_data import FramedDataset

EOS = 2
ROUGE = ["--eval-rouge", "--best-checkpoint-metric", "rougeL", "--maximize-best-checkpoint-metric"]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with dictionaries of letters, and BPE codes that split words into them."""
    folder = tmp_path_factory.mktemp("letters")
    (folder / "codes").write_text("#version: 0.2\nx x\n")
    dictionary = Dictionary()
    for letter in "abcdefgh":
        dictionary.add_symbol(letter)
        dictionary.add_symbol(f"{letter}@@")
    for side in ("source", "target"):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    return folder


@pytest.fixture(scope="module")
def bpe(letters: Path) -> list[Any]:
    """Flags of the BPE."""
    return ["--bpe", "subword_nmt", "--bpe-codes", letters / "codes"]


@pytest.fixture(scope="module")
def make_task(letters: Path) -> Callable[..., SummarizationTask]:
    """Set the task up from flags of fairseq-train, or of fairseq-generate with ``path``."""

    def make(*flags: Any, data: Path | str = letters, path: str = "") -> SummarizationTask:
        common = [str(data), "--task", "summarization", *map(str, flags)]
        if data == letters:
            common += ["-s", "source", "-t", "target"]
        if path:
            parser = options.get_generation_parser()
            args = options.parse_args_and_arch(parser, [*common, "--path", path])
        else:
            parser = options.get_training_parser()
            args = options.parse_args_and_arch(parser, [*common, "--arch", "transformer"])
        return tasks.setup_task(convert_namespace_to_omegaconf(args).task)

    return make


def problems(make: Callable[..., SummarizationTask], *flags: Any, **named: Any) -> list[str]:
    """The problems that the only error lists."""
    with pytest.raises(ConfigError) as raised:
        make(*flags, **named)
    first, *listed = str(raised.value).split("\n- ")
    assert first == "task summarization:"
    return listed


@pytest.mark.parametrize("limit", [None, 4, 5, 6, 7, 100])
@pytest.mark.parametrize("prefix", [[], [7], [7, 8]])
def test_texts_are_framed(prefix: list[int], limit: int) -> None:
    """The prefix first, the end of the sentence last, and sizes that are the lengths."""
    texts = [[4, EOS], [4, 5, 6, EOS], [3, 4, 5, 6, 3, 4, EOS]]
    dataset = ListDataset([torch.tensor(t) for t in texts], [len(t) for t in texts])
    framed = FramedDataset(dataset, prefix, limit)
    for i, text in enumerate(texts):
        whole = [*prefix, *text]
        expected = whole if limit is None else [*whole[:-1][: limit - 1], EOS]
        assert framed[i].tolist() == expected
        assert framed.sizes[i] == framed.size(i) == framed.num_tokens(i) == len(expected)
    assert dataset[1].tolist() == texts[1]


def test_the_prefix_is_encoded_like_the_data(
    make_task: Callable[..., SummarizationTask], bpe: list[Any]
) -> None:
    encoded = make_task("--source-prefix", "head cab ", *bpe)
    assert encoded.prefix == "h@@ e@@ a@@ d c@@ a@@ b".split()
    assert make_task("--source-prefix", "a  b@@ c ").prefix == ["a", "b@@", "c"]
    assert make_task("--source-prefix", "").prefix == make_task().prefix == []
    text = torch.tensor([encoded.src_dict.index("g"), EOS])
    (framed,) = encoded.build_dataset_for_inference([text], [2])
    assert encoded.src_dict.string(framed["source"]) == "h@@ e@@ a@@ d c@@ a@@ b g"


def test_sources_are_cut_to_what_the_model_reads(
    make_task: Callable[..., SummarizationTask],
) -> None:
    """It may read fewer tokens than --max-source-positions."""
    task = make_task("--truncate-source", "--max-source-positions", 9)
    task.limits = (5, 7)
    (framed,) = task.build_dataset_for_inference([torch.tensor([4] * 11 + [EOS])], [12])
    assert framed["source"].tolist() == [4] * 4 + [EOS]


def test_prefixes_that_cannot_be_are_refused(
    make_task: Callable[..., SummarizationTask], bpe: list[Any]
) -> None:
    unknown = problems(make_task, "--source-prefix", "a bz: ?")
    assert unknown == [
        "--source-prefix 'a bz: ?': the dictionary does not contain bz:, ?; give the --bpe and "
        "--tokenizer of the data with their options, or write the prefix as it would be in the data"
    ]
    (letter,) = problems(make_task, "--source-prefix", "az", *bpe)
    assert "does not contain z; choose another prefix" in letter
    (long,) = problems(make_task, "--source-prefix", "a b c", "--max-source-positions", 4)
    assert "has 3 tokens, which leaves no room for a text in --max-source-positions 4" in long
    assert make_task("--source-prefix", "a b c", "--max-source-positions", 5).prefix


def test_options_of_rouge_without_it(make_task: Callable[..., SummarizationTask]) -> None:
    """Only --eval-rouge-args is read later, by `summarize`; it has to be right."""
    args = ["--eval-rouge-args", '{"beam": 3}']
    assert make_task(*args).cfg.eval_rouge_args == args[1]
    assert problems(make_task, "--eval-rouge-print-samples", "--eval-rouge-detok", "nltk") == [
        "--eval-rouge-detok has no effect without --eval-rouge; give it, or leave this out",
        "--eval-rouge-print-samples has no effect without --eval-rouge; give it, or leave this out",
    ]
    (wrong,) = problems(make_task, "--eval-rouge-args", "{beam: 3}")
    assert "not JSON" in wrong


def test_rouge_as_best_checkpoint_metric_must_be_computed_and_maximized(
    make_task: Callable[..., SummarizationTask],
) -> None:
    assert problems(make_task, "--best-checkpoint-metric", "rougeLsum") == [
        "--best-checkpoint-metric rougeLsum needs --eval-rouge",
        "--best-checkpoint-metric rougeLsum needs --maximize-best-checkpoint-metric, without "
        "which the checkpoint with the lowest value is kept",
    ]
    (name,) = problems(
        make_task, "--eval-rouge", "--best-checkpoint-metric", "rouge-L",
        "--maximize-best-checkpoint-metric",
    )  # fmt: skip
    assert name == (
        "--best-checkpoint-metric rouge-L: expected one of rouge1, rouge2, rougeL, rougeLsum"
    )
    assert make_task(*ROUGE).cfg.eval_rouge
    assert make_task("--best-checkpoint-metric", "loss").cfg.eval_rouge is False


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--eval-rouge-args", "{beam:2}"], "--eval-rouge-args {beam:2}: not JSON"),
        (["--eval-rouge-args", "[2]"], "expected a JSON object"),
        (["--eval-rouge-args", '{"beams": 2}'], "no search option 'beams'; did you mean beam?"),
        (["--eval-rouge-args", '{"score_reference": true}'], "no search option 'score_reference'"),
        (["--eval-rouge-args", '{"min_len": "55"}'], "min_len='55': expected a whole number"),
        (["--eval-rouge-args", '{"beam": 2.5}'], "beam=2.5: expected a whole number"),
        (["--eval-rouge-args", '{"lenpen": "2"}'], "lenpen='2': expected a number; leave out"),
        (["--eval-rouge-args", '{"lenpen": 1e30}'], "lenpen=1e+30: expected -10 to 10"),
        (["--eval-rouge-args", '{"lenpen": NaN}'], "lenpen=nan: expected a number"),
        (["--eval-rouge-args", '{"max_len_b": null}'], "max_len_b=None: expected a whole number"),
        (["--eval-rouge-args", '{"sampling": 1}'], "sampling=1: expected true or false"),
        (["--eval-rouge-args", '{"beam": true}'], "beam=True: expected a whole number"),
        (["--eval-rouge-args", '{"beam": 0}'], "expected a beam of at least 1"),
        (["--eval-rouge-args", '{"temperature": 0}'], "temperature=0: expected more than 0"),
        (["--eval-rouge-args", '{"diverse_beam_groups": 3}'], "a beam that is a multiple of"),
        (["--eval-rouge-args", '{"min_len": 60, "max_len_b": 50}'], "min_len=60 is more than the"),
        (["--eval-rouge-args", '{"min_len": -5}'], "min_len=-5: expected at least 0"),
        (["--eval-rouge-args", '{"min_len": 201}'], "min_len=201 is more than the longest"),
        (["--eval-rouge-args", '{"min_len": 55}', "--max-target-positions", 55], "'s 55 positions"),
        (["--eval-rouge-detok", "mozes"], "--eval-rouge-detok mozes: expected one of moses"),
        (["--eval-rouge-detok-args", "x"], "--eval-rouge-detok-args x: not JSON"),
        (["--bpe", "subword_nmt", "--eval-rouge-remove-bpe"], "both would join subwords"),
        (["--tokenizer", "nltk", "--eval-rouge-detok", "moses"], "both would detokenize"),
        (["--disable-validation"], "needs the validation that --disable-validation switches off"),
        (["--load-alignments"], "summaries have no word alignments"),
    ],
)
def test_bad_options_are_named(
    make_task: Callable[..., SummarizationTask], flags: list[Any], message: str
) -> None:
    (problem,) = problems(make_task, *ROUGE, *flags)
    assert message in problem


def test_whole_numbers_may_be_written_as_fractions(make_task: Callable[..., Any]) -> None:
    make_task(*ROUGE, "--eval-rouge-args", '{"beam": 4.0, "max_len_b": 60.0}')
    found = search_options({"beam": 4.0, "max_len_b": 60.0}, 1, 9, 99)
    assert (found.beam, found.max_len_b) == (4, 60) and type(found.beam) is int


def test_good_options_are_taken(make_task: Callable[..., SummarizationTask]) -> None:
    make_task(*ROUGE, "--eval-rouge-args", '{"min_len": 55, "max_len_b": 140, "lenpen": 2.0}')
    make_task(*ROUGE, "--eval-rouge-args", '{"min_len": 201, "max_len_a": 1}')
    make_task(*ROUGE, "--eval-rouge-remove-bpe", "sentencepiece", "--eval-rouge-detok", "nltk")


def test_rouge_needs_summaries(
    make_task: Callable[..., SummarizationTask], corpus: Path, tmp_path: Path
) -> None:
    shutil.copytree(corpus / "bin", tmp_path / "bin")
    for file in (tmp_path / "bin").glob("valid.src-tgt.tgt.*"):
        file.unlink()
    (problem,) = problems(make_task, *ROUGE, data=tmp_path / "bin")
    assert "the subset valid has no summaries" in problem and "valid.src-tgt.tgt.bin" in problem
    make_task(data=tmp_path / "bin")
    make_task(*ROUGE, "--valid-subset", "test", data=tmp_path / "bin")
    make_task(*ROUGE, data=corpus / "bin")


def state_of(*flags: Any, make: Callable[..., SummarizationTask]) -> dict[str, Any]:
    """The task's options in a checkpoint of a training."""
    return make(*flags).state_dict()


def test_a_checkpoints_input_is_taken_over(
    make_task: Callable[..., SummarizationTask], bpe: list[Any]
) -> None:
    """Even where the prefix could not be encoded again, for lack of --bpe."""
    saved = state_of("--source-prefix", "cab", *bpe, "--truncate-source", make=make_task)
    for flags in ([], ["--source-prefix", "cab"]):
        task = make_task(*flags, path="x.pt")
        assert task.prefix is None and not task.truncate_source
        task.load_state_dict(saved)
        assert task.prefix == ["c@@", "a@@", "b"] and task.truncate_source
    other = make_task("--source-prefix", "a", path="x.pt")
    other.load_state_dict(saved)
    assert other.prefix is None and other.truncate_source, "what was given is encoded"
    task.load_state_dict({})
    assert task.prefix == ["c@@", "a@@", "b"]


def test_only_a_training_that_truncates_truncates_later(
    make_task: Callable[..., SummarizationTask],
) -> None:
    for flags in ([], ["--truncate-source"]):
        task = make_task(path="x.pt")
        task.load_state_dict(state_of(*flags, make=make_task))
        assert task.truncate_source is bool(flags)


def test_an_ensemble_has_one_prefix(make_task: Callable[..., SummarizationTask]) -> None:
    states = [state_of("--source-prefix", text, make=make_task) for text in ("a b", "c")]
    task = make_task(path="x.pt:y.pt")
    task.load_state_dict(states[0])
    task.load_state_dict(states[0])
    with pytest.raises(ConfigError, match="trained with different prefixes, 'a b' and 'c'"):
        task.load_state_dict(states[1])
    chosen = make_task("--source-prefix", "c", path="x.pt:y.pt")
    for state in states:
        chosen.load_state_dict(state)
    assert chosen.prefix == ["c"]


@pytest.mark.parametrize(
    "lengths, limits",
    [([1024, 4096], (1024, 1024)), ([4096, 1024], (1024, 1024)), ([512, 4096], (512, 1024)),
     ([4096, 2048], (2048, 1024)), ([4096], (4096, 1024))],
)  # fmt: skip
def test_the_shortest_model_of_an_ensemble_limits_the_texts(
    make_task: Callable[..., SummarizationTask], lengths: list[int], limits: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In whichever order they are built."""
    task = make_task(path="x.pt:y.pt")
    for length in lengths:
        model = SimpleNamespace(max_positions=lambda length=length: (length, 1024))
        monkeypatch.setattr(TranslationTask, "build_model", lambda *_, model=model: model)
        task.build_model(None)
    assert task.limits == limits


def test_the_state_is_safe_to_load(
    make_task: Callable[..., SummarizationTask], tmp_path: Path
) -> None:
    state = state_of("--source-prefix", "a b", make=make_task)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded[STATE] == {
        "source_prefix": "a b", "prefix_symbols": ["a", "b"], "truncate_source": False
    }  # fmt: skip


@pytest.mark.parametrize("reads_target", [True, False])
def test_only_summaries_that_are_read_are_cut(
    make_task: Callable[..., SummarizationTask], corpus: Path, reads_target: bool
) -> None:
    """Training cuts them and keeps whole ones for ROUGE; generation compares with whole ones."""
    task = make_task(*ROUGE, "--truncate-target", "--max-target-positions", 5, data=corpus / "bin")
    task.reads_target = reads_target
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    whole = [len(line.split()) + 1 for line in (corpus / "valid.tgt").read_text().splitlines()]
    assert max(whole) > 5
    assert dataset.tgt_sizes.tolist() == [min(n, 5) for n in whole]
    batch = dataset.collater([dataset[i] for i in range(len(whole))])
    lengths = batch["target"].ne(1).sum(1).tolist()
    order = batch["id"].tolist()
    if reads_target:
        assert lengths == [min(whole[i], 5) for i in order]
        assert [len(r) for r in batch["references"]] == [whole[i] for i in order]
    else:
        assert lengths == [whole[i] for i in order] and "references" not in batch


def test_batches_are_padded_as_fairseqs_options_say(
    make_task: Callable[..., SummarizationTask], corpus: Path
) -> None:
    """By default sources on the left, and summaries on the right."""
    opposite = ["--left-pad-source", "--left-pad-target"]
    for flags, left in (([], [True, False]), (opposite, [False, True])):
        task = make_task(*flags, "--required-seq-len-multiple", 16, data=corpus / "bin")
        task.reads_target = True
        task.load_dataset("valid")
        dataset = task.dataset("valid")
        batch = dataset.collater([dataset[i] for i in range(20)])
        for tokens, padded_left in zip((batch["net_input"]["src_tokens"], batch["target"]), left):
            assert tokens.size(1) % 16 == 0
            first, last = (tokens[:, column].eq(1).any() for column in (0, -1))
            assert (first, last) == (padded_left, not padded_left)


def test_only_the_training_set_is_in_several_folders(
    make_task: Callable[..., SummarizationTask], corpus: Path, tmp_path: Path
) -> None:
    """Each epoch reads the next of them; validation reads the first one."""
    for file in (corpus / "bin").glob("valid.*"):
        shutil.copy(file, tmp_path / file.name.replace("valid", "train"))
    task = make_task(data=f"{corpus / 'bin'}:{tmp_path}")
    for epoch, texts in ((1, 200), (2, 20), (3, 200)):
        task.load_dataset("train", epoch)
        task.load_dataset("valid", epoch)
        assert [len(task.dataset(split)) for split in ("train", "valid")] == [texts, 20]


@pytest.mark.parametrize("cut", [True, False])
def test_summaries_whose_score_is_asked_for_are_read(
    make_task: Callable[..., SummarizationTask], corpus: Path, cut: bool
) -> None:
    """With --score-reference, longer ones than the model reads are refused or truncated."""
    flags = ["--score-reference", "--max-target-positions", 5, *["--truncate-target"][: int(cut)]]
    task = make_task(*flags, data=corpus / "bin", path="x.pt")
    task.prefix = []
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    whole = [len(line.split()) + 1 for line in (corpus / "valid.tgt").read_text().splitlines()]
    longest = 5 if cut else max(whole)
    assert dataset.tgt_sizes.tolist() == [min(n, longest) for n in whole]
    assert max(len(dataset[i]["target"]) for i in range(len(whole))) == longest
    if not cut:
        with pytest.raises(ConfigError, match="Size of sample .* long targets with --truncate-t"):
            task.filter_indices_by_size(dataset.ordered_indices(), dataset, task.max_positions())


class Generated:
    """Replaces the task: the texts that a model generates are given."""

    def __init__(self, task: SummarizationTask, hypotheses: list[Tensor]) -> None:
        self.cfg, self.target_dictionary = task.cfg, task.target_dictionary
        self.hypotheses = hypotheses

    def build_generator(self, models: list[Any], args: Any) -> None:
        self.asked = (models, vars(args))

    def inference_step(self, *_: Any) -> list[list[dict[str, Tensor]]]:
        return [[{"tokens": tokens}, {}] for tokens in self.hypotheses]


def test_batches_are_scored_as_text(
    make_task: Callable[..., SummarizationTask], bpe: list[Any]
) -> None:
    task = make_task(*ROUGE, *bpe, "--eval-rouge-args", '{"beam": 2}')

    def tokens(text: str) -> Tensor:
        letters = "@@ ".join(text).replace("@@  @@ ", " ")
        return task.tgt_dict.encode_line(letters, add_if_not_exist=False).long()

    unknown = torch.tensor([task.tgt_dict.unk(), EOS])
    generated = Generated(task, [tokens("a head fed"), tokens("cab"), unknown])
    evaluation = RougeEvaluation(generated, None)
    assert generated.asked == ([None], {"beam": 2})
    pad = task.tgt_dict.pad()
    rows = [tokens("fed a cab head"), tokens("cab"), unknown]
    target = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    sums = evaluation.score_batch({"target": target}, None)
    rouge = Rouge()
    pairs = (("fed a cab head", "a head fed"), ("cab", "cab"), ("x", "y"))
    scores = [rouge.score([r], h) for r, h in pairs]
    assert sums[COUNT] == 3
    for name in VARIANTS:
        assert sums[f"_{name}"] == pytest.approx(sum(s[name] for s in scores))
    whole = evaluation.score_batch({"target": target, "references": rows[1:2] * 3}, None)
    assert whole["_rouge1"] == pytest.approx(1)


def test_rouge_is_averaged_over_batches_and_processes() -> None:
    """Batches of one and of three summaries; the second batch is that of two processes."""
    first = {COUNT: 1, **{f"_{name}": 0.5 for name in VARIANTS}}
    second = [{COUNT: n, **{f"_{name}": x for name in VARIANTS}} for n, x in ((1, 1.0), (2, 0.1))]
    with metrics.aggregate(new_root=True) as found:
        log_rouge([first])
        log_rouge([{k: torch.tensor(v, dtype=torch.double) for k, v in o.items()} for o in second])
        log_rouge([{"loss": 1.0}])
    values = found.get_smoothed_values()
    for name in VARIANTS:
        assert values[name] == pytest.approx(100 * 1.6 / 4)
    with metrics.aggregate(new_root=True) as training:
        log_rouge([{"loss": 1.0}])
    assert not training.get_smoothed_values()
