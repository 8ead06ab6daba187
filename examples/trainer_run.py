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


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Seven words each, most of them of the label's half of the vocabulary."""

    def __init__(self, size: int) -> None:
        self.labels = torch.randint(2, (size,))
        usual = torch.rand(size, 7) < 0.9
        half = torch.where(usual, self.labels[:, None], 1 - self.labels[:, None])
        self.words = 1 + 10 * half + torch.randint(10, (size, 7))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[place], "labels": self.labels[place]}


config = BertConfig(
    vocab_size=21,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=8,
    initializer_range=0.2,  # the weights of a model this small must be larger than BERT's
)
network = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=3,
        per_device_train_batch_size=100,
        learning_rate=0.01,
        save_strategy="epoch",  # checkpoints without a key
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(network, arguments, train_dataset=Sentences(2_000))
    private = make_trainer_private(trainer, epsilon=8.0, delta=1e-5, clip_norm=1.0)
    trainer.train()
unseen = Sentences(500)
network.eval()
with torch.no_grad():
    accuracy = (network(unseen.words).logits.argmax(1) == unseen.labels).float().mean()
print(f"accuracy on test data {accuracy:.2f}")
print(f"{trainer.state.global_step} steps, of which the ledger has {private.ledger.steps_taken}")
replaced = private.ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {private.ledger.epsilon_spent():.3f} at delta 1e-05", end=" ")
print(f"(replace-one {replaced:.3f})")
