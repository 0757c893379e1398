"""What its containers run."""

import einops
import torch

print(einops.rearrange(torch.arange(4), "(a b) -> a b", a=2).tolist())
