"""One step of training of a small model, without a download."""

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

accelerator = Accelerator()
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
rows = Dataset.from_dict({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8]]}).with_format("torch")
words = rows[:]["input_ids"].to(accelerator.device)
loss = model(input_ids=words, labels=words).loss
accelerator.backward(loss)
optimizer.step()
print(f"loss {loss.item():.2f} on {accelerator.device}, torch {torch.__version__}")
