# SPDX-License-Identifier: Apache-2.0
"""Cases of transformers and peft."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers
from torch import nn
from zoo import CLASSES, ROWS, WORDS, Case, of_logits, own_loss, words

SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {
    "vocab_size": WORDS,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 12,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": CLASSES,
}
# Their first pass warns that a loss of a default kind is used, or of a cache: nothing of ours.
transformers.logging.set_verbosity_error()


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))


def roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES))


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=24, num_labels=CLASSES,
        max_position_embeddings=12, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


def deberta() -> nn.Module:
    config = transformers.DebertaV2Config(
        **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4,
        max_relative_positions=8, share_att_key=True, norm_rel_ebd="layer_norm",
        position_biased_input=False, pooler_hidden_size=16, pooler_dropout=0.0,
    )  # fmt: skip
    return transformers.DebertaV2ForSequenceClassification(config)


def gpt2_head() -> nn.Module:
    """Its embedding is its last layer, too."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def gpt2_classes() -> nn.Module:
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**GPT2))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=12, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0,
        relative_attention_num_buckets=8, pad_token_id=0, decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    config = transformers.BartConfig(
        vocab_size=WORDS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24,
        decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2, dropout=0.0,
        max_position_embeddings=12, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        layerdrop=0.0, mask_time_prob=0.0, num_labels=CLASSES, classifier_proj_size=8,
        apply_spec_augment=False,
    )  # fmt: skip
    return transformers.Wav2Vec2ForSequenceClassification(config)


def images() -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.randn(ROWS, 3, 8, 8),
        "labels": torch.randint(0, CLASSES, (ROWS,)),
    }


def waves() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(ROWS, 120), "labels": torch.randint(0, CLASSES, (ROWS,))}


def checkpointed() -> nn.Module:
    model: Any = bert()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model  # type: ignore[no-any-return]


def adapted(model: nn.Module, config: Any) -> nn.Module:
    """A model with adapters whose weights are not zero, so that all gradients are tested."""
    wrapped: nn.Module = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if p.requires_grad and ("lora_B" in name or "ia3" in name):
                p.add_(torch.randn_like(p) * 0.1)
    return wrapped


def lora(model: nn.Module, *targets: str, **options: Any) -> nn.Module:
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=4, lora_dropout=0.0, target_modules=[*targets],
        **options,
    )  # fmt: skip
    return adapted(model, config)


def ia3() -> nn.Module:
    config = peft.IA3Config(
        task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"],
        feedforward_modules=["output.dense"],
    )  # fmt: skip
    return adapted(bert(), config)


def prompted() -> nn.Module:
    return adapted(bert(), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))


CASES = {
    "BERT": Case(bert, words("labels"), own_loss),
    "BERT, checkpoints": Case(checkpointed, words("labels"), own_loss),
    "RoBERTa": Case(roberta, words("labels"), own_loss),
    "DistilBERT": Case(distilbert, words("labels"), of_logits),
    "DeBERTa": Case(deberta, words("labels"), own_loss, slow=True),
    "GPT-2": Case(gpt2_classes, words("labels", mask=False), own_loss),
    "GPT-2, tied head": Case(gpt2_head, words("next"), own_loss),
    "Llama": Case(llama, words("next"), own_loss),
    "T5": Case(t5, words("next"), own_loss, slow=True),
    "BART": Case(bart, words("next"), own_loss, slow=True),
    "ViT": Case(vit, images, own_loss),
    "Wav2Vec2": Case(wav2vec2, waves, own_loss, slow=True),
    "LoRA on GPT-2": Case(
        lambda: lora(gpt2_classes(), "c_attn", fan_in_fan_out=True),
        words("labels", mask=False),
        own_loss,
    ),
    "LoRA on BERT": Case(lambda: lora(bert(), "query", "value"), words("labels"), own_loss),
    "DoRA on BERT": Case(
        lambda: lora(bert(), "query", "value", use_dora=True), words("labels"), own_loss
    ),
    "IA3 on BERT": Case(ia3, words("labels"), own_loss),
    "prompt tuning of BERT": Case(prompted, words("labels"), own_loss),
}
