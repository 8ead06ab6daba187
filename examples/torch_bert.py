# SPDX-License-Identifier: Apache-2.0
"""Fine-tune BERT privately to tell good reviews from bad ones.

python examples/torch_bert.py   a tiny BERT with random weights
python examples/torch_bert.py --pretrained bert-base-uncased   one of a hub or folder
"""

from __future__ import annotations

import argparse
import random

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
)

from dpftrl_fast.torch import make_private

parser = argparse.ArgumentParser()
parser.add_argument("--pretrained", metavar="NAME", help="load this model and its tokenizer")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=200)
arguments = parser.parse_args()

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the first weights
draw = random.Random(0)  # public: the data of an example
LENGTH = 16
GOOD = ["great", "superb", "charming", "witty", "moving", "bright"]
BAD = ["dull", "awful", "clumsy", "boring", "bleak", "flat"]
REST = ["the", "film", "was", "and", "its", "plot", "felt", "very", "to", "me", "again", "with"]


def review(label: int) -> str:
    """Return some words, two of which say what the label is."""
    words = draw.choices(REST, k=draw.randint(3, 9)) + draw.choices([BAD, GOOD][label], k=2)
    draw.shuffle(words)
    return " ".join(words)


class Reviews(Dataset[dict[str, torch.Tensor]]):
    """Reviews, each padded to the same length: no row depends on the length of another."""

    def __init__(self, size: int) -> None:
        self.labels = [draw.randrange(2) for _ in range(size)]
        self.rows = encode([review(label) for label in self.labels])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        row = {name: values[place] for name, values in self.rows.items()}
        return {**row, "labels": torch.tensor(self.labels[place])}


if arguments.pretrained is not None:
    tokenizer = AutoTokenizer.from_pretrained(arguments.pretrained)
    network = AutoModelForSequenceClassification.from_pretrained(arguments.pretrained, num_labels=2)
    learning_rate = 5e-4

    def encode(texts: list[str]) -> dict[str, torch.Tensor]:
        return dict(
            tokenizer(
                texts,
                padding="max_length",
                truncation=True,
                max_length=LENGTH,
                return_tensors="pt",
            )
        )

else:
    places = {word: place for place, word in enumerate(["[PAD]", "[CLS]", *GOOD, *BAD, *REST])}
    config = BertConfig(
        vocab_size=len(places),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        initializer_range=0.2,  # the weights of a model this small must be larger than BERT's
    )
    network = BertForSequenceClassification(config)
    learning_rate = 0.01

    def encode(texts: list[str]) -> dict[str, torch.Tensor]:
        rows = torch.zeros(len(texts), LENGTH, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            words = ["[CLS]", *text.split()]
            row[: len(words)] = torch.tensor([places[word] for word in words])
        return {"input_ids": rows, "attention_mask": (rows != 0).long()}


train, test = Reviews(4_000), Reviews(500)
model, optimizer, loader, ledger = make_private(
    network,
    torch.optim.AdamW(network.parameters(), lr=learning_rate),
    DataLoader(train, batch_size=arguments.batch_size),
    epsilon=8.0,
    delta=1e-5,
    epochs=arguments.epochs,
    clip_norm=1.0,
)
for epoch in range(arguments.epochs):
    model.train()
    for batch in loader.batches():
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for batch in DataLoader(test, batch_size=100):
            correct += int((model(**batch).logits.argmax(1) == batch["labels"]).sum())
    print(f"epoch {epoch + 1}: accuracy on test data {correct / len(test):.2f}")
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {ledger.epsilon_spent():.3f} at delta {ledger.target_delta}", end=" ")
print(f"(replace-one {replaced:.3f})")
