# SPDX-License-Identifier: Apache-2.0
"""Adapt GPT-2 privately with LoRA (peft): only the adapters are trained, and get noise.

python examples/torch_lora_gpt2.py                     a tiny GPT-2 with random weights
python examples/torch_lora_gpt2.py --pretrained gpt2   any GPT-2 of a hub or folder
"""

from __future__ import annotations

import argparse
import random

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from dpftrl_fast.torch import PerExampleLoss, make_private

parser = argparse.ArgumentParser()
parser.add_argument("--pretrained", metavar="NAME", help="load this model and its tokenizer")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=200)
parser.add_argument("--save", metavar="FOLDER", help="save the adapters, which may be published")
arguments = parser.parse_args()

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the first weights
draw = random.Random(0)  # public: the data of an example
LENGTH = 12
WHO = ["anna", "bert", "carol", "david"]
DOES = ["reads", "buys", "sells", "likes"]
THINGS = ["books", "chairs", "lamps", "maps"]
WORDS = ["[PAD]", *WHO, *DOES, *THINGS, "old", "and", "."]


def sentence() -> str:
    """Return a sentence of four to nine words: "anna reads old books and maps ."."""
    things = [draw.choice(["", "old "]) + thing for thing in draw.sample(THINGS, k=2)]
    end = " and ".join(things[: draw.randint(1, 2)])
    return f"{draw.choice(WHO)} {draw.choice(DOES)} {end} ."


if arguments.pretrained is not None:
    tokenizer = AutoTokenizer.from_pretrained(arguments.pretrained)
    tokenizer.pad_token = tokenizer.eos_token
    base = GPT2LMHeadModel.from_pretrained(arguments.pretrained)
    learning_rate = 1e-3

    def encode(texts: list[str]) -> tuple[Tensor, Tensor]:
        found = tokenizer(
            texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        return found["input_ids"], found["attention_mask"]

else:
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,  # random weights, which LoRA keeps, must be large to be of use
    )
    base = GPT2LMHeadModel(config)
    learning_rate = 0.02

    def encode(texts: list[str]) -> tuple[Tensor, Tensor]:
        words = torch.zeros(len(texts), LENGTH, dtype=torch.long)
        for row, text in zip(words, texts, strict=True):
            places = [WORDS.index(word) for word in text.split()]
            row[: len(places)] = torch.tensor(places)
        return words, (words != 0).long()


def rows(size: int) -> TensorDataset:
    words, mask = encode([sentence() for _ in range(size)])
    return TensorDataset(words, mask, words.masked_fill(mask == 0, -100))


network = get_peft_model(
    base,
    LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=16,
        target_modules=["c_attn", "c_proj"],
        fan_in_fan_out=True,  # GPT-2's layers are Conv1D
    ),
)
network.print_trainable_parameters()
train, test = rows(3_000), rows(300)
model, optimizer, loader, ledger = make_private(
    network,
    torch.optim.AdamW(network.parameters(), lr=learning_rate),
    DataLoader(train, batch_size=arguments.batch_size),
    epsilon=8.0,
    delta=1e-5,
    epochs=arguments.epochs,
    clip_norm=1.0,
)
criterion = PerExampleLoss(nn.CrossEntropyLoss())  # each sentence's own mean, without -100


def loss_of(words: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=words, attention_mask=mask).logits
    return criterion(logits[:, :-1].transpose(1, 2), labels[:, 1:])


def on_test_data() -> str:
    model.eval()
    with torch.no_grad():
        losses = [loss_of(*batch) for batch in DataLoader(test, batch_size=100)]
    return f"loss on test data {torch.stack(losses).mean():.2f}"


print("before:", on_test_data())
for epoch in range(arguments.epochs):
    model.train()
    for batch in loader.batches():
        loss_of(*batch).backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: {on_test_data()}")
if arguments.save is not None:
    model.save_pretrained(arguments.save)
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {ledger.epsilon_spent():.3f} at delta {ledger.target_delta}", end=" ")
print(f"(replace-one {replaced:.3f})")
