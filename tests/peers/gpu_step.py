#!/usr/bin/env python3
"""gpu_step.py MODEL B PASSES STEPS DROPOUT - PyTorch's training step on a GPU, to compare with tests/bench/gpu.sh.

A step accumulates the gradients of PASSES micro-batches of B sequences of T tokens.  MODEL is
LAYERS,HIDDEN,HEADS,T,VOCAB: a GPT-2 with tied head, tanh GELU and biases.  The settings are the fastest of nanoGPT:
torch.compile, fused attention, matrix products in bf16 (autocast over f32 weights), fused AdamW, gradient clipping;
random weights and tokens.  DROPOUT is the probability of dropout of attention weights, of the embeddings and of the
output of each sublayer.  Prints one JSON line: median ms of STEPS steps after 5 warm-up steps, tokens per
second, peak memory, and the last loss.
"""
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HIDDEN, HEADS, T, VOCAB = (int(x) for x in sys.argv[1].split(','))
B, PASSES, STEPS = (int(x) for x in sys.argv[2:5])
DROPOUT = float(sys.argv[5])
torch.set_float32_matmul_precision('high')


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = (y.view(B, T, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(HIDDEN, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPOUT)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(B, T, HIDDEN)), DROPOUT)
        return x + F.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate='tanh')), DROPOUT)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(T, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.normal_(w, 0, 0.02)

    def forward(self, tokens, labels):
        x = F.dropout(self.word(tokens) + self.position.weight, DROPOUT)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
compiled = torch.compile(model)


def step():
    for _ in range(PASSES):
        tokens, labels = torch.randint(VOCAB, (2, B, T), device='cuda')
        with torch.autocast('cuda', dtype=torch.bfloat16):
            loss = compiled(tokens, labels) / PASSES
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


for _ in range(5):
    step()
times = []
for _ in range(STEPS):
    torch.cuda.synchronize()
    start = time.perf_counter()
    loss = step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
ms = 1e3 * statistics.median(times)
print(json.dumps({'name': 'PyTorch ' + torch.__version__, 'ms': ms, 'tokens_per_s': 1e3 * PASSES * B * T / ms,
                  'peak_mib': torch.cuda.max_memory_reserved() >> 20, 'loss': PASSES * loss.item()}))
