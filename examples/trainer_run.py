# SPDX-License-Identifier: Apache-2.0
"""Train a small BERT privately with the Trainer of transformers, from random weights."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from dpftrl_fast.torch.frameworks import make_trainer_private

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the data of an example, and the first weights
words = torch.randint(2, 50, (400, 6))
labels = (words[:, 0] < 26).long()


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return len(words)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": words[place], "labels": labels[place]}


config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=100,
        learning_rate=0.01,
        save_strategy="epoch",  # checkpoints without a key
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sentences())
    private = make_trainer_private(trainer, epsilon=8.0, delta=1e-5, clip_norm=1.0)
    trainer.train()
print(f"{trainer.state.global_step} steps, of which the ledger has {private.ledger.steps_taken}")
replaced = private.ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {private.ledger.epsilon_spent():.3f} at delta 1e-05", end=" ")
print(f"(replace-one {replaced:.3f})")
