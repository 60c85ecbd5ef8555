"""What single tasks and encoders of text get wrong."""

from typing import Any

from fairseq_recur.compat.registry import Function, mend, source_of

BART_TASK = "fairseq.tasks.translation_from_pretrained_bart:TranslationFromPretrainedBARTTask"
GPT2 = "fairseq.data.encoders.gpt2_bpe:GPT2BPE.decode"

bart_task = mend(
    "translation from pretrained BART",
    reason="--task translation_from_pretrained_bart reads options from an attribute that it no "
    "longer has, so it loads no data, whatever the model",
    until="a fairseq whose task reads self.cfg",
    needed=lambda: "self.args" in source_of(f"{BART_TASK}.load_dataset"),
)


@bart_task.action
def give_task_args() -> None:
    """Give the task the attribute."""
    from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask

    TranslationFromPretrainedBARTTask.args = property(lambda task: task.cfg)


gpt2_words = mend(
    "words that GPT-2's subwords lack",
    reason="--bpe gpt2 takes every word but <unk> and <mask> for a number: a reference with an "
    "unknown word (<<unk>>), or a hypothesis with a word that fills up BART's dictionary "
    "(madeupword0003), ends generation or a validation that generates with a ValueError",
    until="a fairseq whose GPT2BPE.decode converts numbers only",
    needed=lambda: "int(tok) if tok not in" in source_of(GPT2),
)


@gpt2_words.patch(GPT2)
def decode(_: Function, self: Any, x: str) -> str:
    """Return the text of subwords; what is not a number stays as it is."""
    return self.bpe.decode([int(word) if word.isdecimal() else word for word in x.split()])
