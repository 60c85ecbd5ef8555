"""A model of fairseq_recur in Hugging Face's library.

`fairseq-recur export` copies this file into the folder that it writes, where
``AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)`` finds it. It imports the
installed package, which has the model.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

import fairseq_recur
from fairseq_recur.integration import loading

PAD, EOS = 1, 2  # in every dictionary of fairseq


class FairseqRecurConfig(PretrainedConfig):
    """The options of a model and the sizes of its dictionaries.

    Args:
        options: of the model by fairseq's names, with its architecture as ``_name``.
        source_words: size of the source dictionary.
        vocab_size: size of the target dictionary.
        kwargs: settings of the library.
    """

    model_type = "fairseq_recur"

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        source_words: int = 0,
        vocab_size: int = 0,
        **kwargs: Any,
    ) -> None:
        self.options = options or {}
        self.source_words = source_words
        self.vocab_size = vocab_size
        kwargs = {"tie_word_embeddings": True, **kwargs}  # what the options share
        super().__init__(
            **{
                "is_encoder_decoder": True, "bos_token_id": 0, "pad_token_id": PAD,
                "eos_token_id": EOS, "decoder_start_token_id": EOS, **kwargs,
            }
        )  # fmt: skip


@dataclass
class Encoded(ModelOutput):
    """The output of the encoder.

    Attributes:
        last_hidden_state: (B, S, C).
        fairseq: the same as the decoder takes it, with the recurrence encoder's output.
    """

    last_hidden_state: Tensor | None = None
    fairseq: dict[str, Any] | None = None


class Encoder(nn.Module):
    """The encoder as the library calls it; the weights stay in the model."""

    main_input_name = "input_ids"

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Encoded:
        """Encode (B, S) ids; what (B, S) *attention_mask* has 0 for is padding, on either side."""
        if attention_mask is not None:
            input_ids = input_ids.masked_fill(attention_mask.eq(0), PAD)
        found = self.encoder(input_ids, src_lengths=input_ids.ne(PAD).sum(dim=1))
        return Encoded(found["encoder_out"][0].transpose(0, 1), found)


def one_later(labels: Tensor) -> Tensor:
    """Return what the decoder reads when it learns (B, T) labels, one position later."""
    before = labels[:, :-1].masked_fill(labels[:, :-1].eq(-100), PAD)
    return torch.cat([labels.new_full((len(labels), 1), EOS), before], dim=1)


@dataclass
class Past:
    """What decoding keeps from step to step.

    Attributes:
        encoded: output of the encoder, for the rows of the beams.
        state: fairseq's incremental state.
        length: number of positions in the state.
    """

    encoded: dict[str, Any]
    state: dict[str, Any]
    length: int = 0

    def step(self, decoder: Any, tokens: Tensor) -> Any:
        """Decode (B, T) tokens so far, whose new positions come one by one: the newest's output.

        fairseq's decoder reads one new position at a time; a prompt has several.
        """
        if tokens.size(1) <= self.length:
            raise ValueError(
                f"decoder_input_ids has {tokens.size(1)} positions, and the cache has "
                f"{self.length} already; give more positions, or no cache"
            )
        for position in range(self.length + 1, tokens.size(1) + 1):
            out = decoder(tokens[:, :position], self.encoded, incremental_state=self.state)
        self.length = tokens.size(1)
        return out


class FairseqRecurForSeq2SeqLM(PreTrainedModel, GenerationMixin):
    """An encoder-decoder of fairseq_recur, for inference and training."""

    config_class = FairseqRecurConfig
    main_input_name = "input_ids"

    def __init__(self, config: FairseqRecurConfig) -> None:
        super().__init__(config)
        fairseq_recur.register()
        dictionaries = []
        for size in (config.source_words, config.vocab_size):
            words = Dictionary()
            words.symbols += ["_"] * (size - len(words))  # only their number counts
            words.count += [1] * (size - len(words.count))
            dictionaries.append(words)
        task = Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
        # The library builds models without memory and fills in weights, but not constants.
        with torch.device("cpu"), loading():
            model = build_model(Namespace(**config.options), task)
        self.model = model.to(torch.get_default_dtype())  # the library's `dtype`, also of constants
        self._constants = {
            module: {name: module.get_buffer(name).clone() for name in names}
            for module in self.model.modules()
            if (names := module._non_persistent_buffers_set)
        }
        first: dict[Tensor, str] = {}
        names = self.named_parameters(remove_duplicate=False)
        shared = {name: first.setdefault(weight, name) for name, weight in names}
        self._tied_weights_keys = {k: v for k, v in shared.items() if k != v}
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Restore constants; called after loading."""
        for name, value in self._constants.get(module, {}).items():
            module.get_buffer(name).copy_(value)

    def get_encoder(self, *args: Any, **kwargs: Any) -> Encoder:
        """Return the encoder."""
        return Encoder(self.model.encoder)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: Encoded | None = None,
        past_key_values: Past | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Predict the words of a target.

        Args:
            input_ids: (B, S) ids of the source, each text with its end-of-sentence symbol.
            attention_mask: (B, S) 0 at padding; by default the padding symbol tells.
            decoder_input_ids: (B, T) ids of the target so far, of which the first is the
                end-of-sentence symbol; by default *labels* one position later.
            labels: (B, T) ids of the target, -100 where nothing is to be learned.
            encoder_outputs: of the encoder, instead of *input_ids*; its rows may be fewer, if
                each has as many beams.
            past_key_values: of an earlier step; then only the positions after it are computed.
            use_cache: return ``past_key_values``, and the newest position's logits only.
            return_dict: False returns a tuple.

        Returns:
            ``logits`` are log-probabilities (B, T, V), with a cache (B, 1, V). ``loss`` is the
            mean of *labels*' negative log-probability.
        """
        if labels is not None:
            use_cache = None  # with a cache there are only the scores of the newest position
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("no decoder_input_ids and no labels; give one of them")
            decoder_input_ids = one_later(labels)
        if past_key_values is None:
            if encoder_outputs is None:
                if input_ids is None:
                    raise ValueError("no input_ids and no encoder_outputs; give one of them")
                encoder_outputs = self.get_encoder()(input_ids, attention_mask)
            encoded = self._for_beams(encoder_outputs, len(decoder_input_ids))
            past_key_values = Past(encoded, {}) if use_cache else None
        if past_key_values is None:
            out = self.model.decoder(decoder_input_ids, encoded)
        else:
            out = past_key_values.step(self.model.decoder, decoder_input_ids)
        logits = self.model.get_normalized_probs(out, log_probs=True)
        loss = None if labels is None else nll_loss(logits.flatten(0, 1), labels.flatten())
        found = Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=past_key_values)
        return found.to_tuple() if return_dict is False else found

    def _for_beams(self, encoder_outputs: Encoded, targets: int) -> dict[str, Any]:
        """Return the encoder's output for so many targets: a row for each beam of each text."""
        encoded = encoder_outputs["fairseq"]
        rows = torch.arange(encoded["encoder_out"][0].size(1), device=self.device)
        beams = targets // len(rows)
        return self.model.encoder.reorder_encoder_out(encoded, rows.repeat_interleave(beams))

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        encoder_outputs: Encoded | None = None,
        past_key_values: Past | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `forward` in a step of ``generate``: all words so far."""
        return {
            "decoder_input_ids": input_ids, "encoder_outputs": encoder_outputs,
            "past_key_values": past_key_values, "use_cache": use_cache,
        }  # fmt: skip

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Whether ``generate`` makes the cache: no, `Past` comes from `forward`."""
        return False

    def _reorder_cache(self, past_key_values: Past, beam_idx: Tensor) -> Past:
        """Return the cache of the beams that continue."""
        past = past_key_values
        past.encoded = self.model.encoder.reorder_encoder_out(past.encoded, beam_idx)
        self.model.decoder.reorder_incremental_state_scripting(past.state, beam_idx)
        return past
