"""The engine of another package, as described in docs/extending.md: it reads folders and has its own decoding loop."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from llmtrack.engine import EngineInfo, Generated
from llmtrack.errors import UsageError
from llmtrack.measure.memory import peak_rss_bytes, reset_peak_rss
from llmtrack.models.folder import model_folder
from llmtrack.parameter import NONE
from llmtrack.quantize.recipe import Recipe, find_recipe
from llmtrack.tensors import tokens
from llmtrack.tensors.likelihood import predicted, sum_nll
from llmtrack.tensors.padding import pad_rows


def halve(model):
    """Round the weights of linear layers to 16 bits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


RECIPES = (Recipe("rounded", "plugin", "all weights, rounded to bfloat16", "bfloat16", halve),)


def load(variant):
    if variant.device not in ("auto", "cpu"):
        raise UsageError(f"the plugin backend has no device {variant.device!r}: use cpu")
    start = time.perf_counter()
    folder = model_folder(variant.model, variant.revision)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(folder.path), local_files_only=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(folder.path), local_files_only=True)
    label = "float32"
    if variant.quantization != NONE:
        recipe = find_recipe("plugin", variant.quantization)
        recipe.apply(model)
        label = f"{recipe.dtype} weights (float32)"
    return PluginEngine(model.eval(), tokenizer, folder, label, time.perf_counter() - start)


@dataclass
class PluginEngine:
    model: object
    tokenizer: object
    folder: object
    label: str
    seconds: float

    @property
    def info(self):
        size = sum(weight.nbytes for weight in self.model.parameters())
        config = self.model.config
        return EngineInfo(
            model_id=self.folder.model_id,
            device="cpu",
            dtype_label=self.label,
            model_size_bytes=size,
            step_weight_bytes=size,
            kv_bytes_per_token=0,
            context_length=config.max_position_embeddings,
            vocab_size=config.vocab_size,
            load_time_s=self.seconds,
            facts=dict(self.folder.facts),
            tags=dict(self.folder.tags),
            warnings=self.folder.warnings,
            special_tokens=tokens.special_tokens(self.tokenizer),
            folder=str(self.folder.path),
        )

    def encode(self, text, special_tokens=True):
        return tokens.encode(self.tokenizer, text, special_tokens)

    def tokenize(self, text, special_tokens=True):
        return tokens.tokenize(self.tokenizer, text, special_tokens)

    def decode(self, ids):
        return tokens.decode(self.tokenizer, ids)

    @torch.inference_mode()
    def generate(self, request, on_step):
        """Decode without a cache, whatever the request: slow, but the same tokens."""
        ends = tokens.eos_ids(self.model.generation_config, self.tokenizer)
        pad = tokens.pad_id(self.tokenizer, self.info.vocab_size)
        ids, mask = pad_rows(request.prompt_ids, pad, request.padding_side, request.padded_length)
        new = []
        for _ in range(request.max_new_tokens):
            logits = self._logits(ids, mask)[:, -1]
            if request.ignore_eos:
                logits[:, sorted(ends)] = -torch.inf
            chosen = logits.argmax(dim=-1)
            on_step()
            new.append(chosen)
            ids = torch.cat([ids, chosen[:, None]], dim=1)
            mask = torch.cat([mask, torch.ones_like(chosen)[:, None]], dim=1)
            rows = torch.stack(new, dim=1).tolist()
            if not request.ignore_eos and all(ends & set(row) for row in rows):
                break
        return Generated(tuple(tokens.until_eos(row, set() if request.ignore_eos else ends) for row in rows))

    @torch.inference_mode()
    def score(self, input_ids, attention_mask, scored=None):
        valid = predicted(attention_mask, scored)
        if not valid.any():
            return torch.zeros(len(valid), dtype=torch.float64), valid.sum(dim=1)
        logits = self._logits(input_ids[:, :-1], attention_mask[:, :-1])
        sums = sum_nll(logits, input_ids[:, 1:], valid, lambda part: part, self.info.vocab_size)
        return sums, valid.sum(dim=1)

    @torch.inference_mode()
    def next_token_logits(self, ids):
        ids = torch.tensor([list(ids)])
        return self._logits(ids, torch.ones_like(ids))[0].float()

    def _logits(self, ids, mask):
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return self.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits

    def synchronize(self):
        pass

    def reset_peak_memory(self):
        reset_peak_rss()

    def peak_memory_bytes(self):
        return peak_rss_bytes()

    def close(self):
        del self.model
