#!/usr/bin/env python3
"""step.py T B STEPS [f32|autocast|bf16] - PyTorch's eager step of GPT-2's 124M on the CPU, to compare with tests/bench/step.

Tied head, tanh GELU, fused attention where this PyTorch has it, clipping, AdamW; random weights and tokens, no dropout.
autocast: f32 weights, matrix products in bf16; bf16: weights, gradients and AdamW's state in bf16, with no f32 copies,
which is less work than meg-train --bf16 does.
Runs on as many threads as this process has processors.  Prints one JSON line with the keys of tests/bench/step.
"""
import os

THREADS = len(os.sched_getaffinity(0))  # before OpenMP starts: OMP_PROC_BIND binds this thread to one processor

import json
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

T, B, STEPS = (int(x) for x in sys.argv[1:4])
MODE = sys.argv[4] if len(sys.argv) > 4 else 'f32'
LABEL = {'f32': '', 'autocast': ', autocast', 'bf16': ', bf16 weights'}[MODE]
LAYERS, HIDDEN, HEADS, VOCAB = 12, 768, 12, 50257
LATER = torch.ones(T, T, dtype=torch.bool).triu(1)


def cpu_s():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def attention(q, k, v):
    if hasattr(F, 'scaled_dot_product_attention'):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    w = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return w.masked_fill(LATER, float('-inf')).softmax(-1) @ v


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).view(B, T, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.proj(attention(*heads).transpose(1, 2).reshape(B, T, HIDDEN))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate='tanh'))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(T, HIDDEN)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.normal_(w, 0, 0.02)

    def forward(self, tokens, labels):
        x = self.norm(self.layers(self.word(tokens) + self.position.weight))
        return F.cross_entropy(F.linear(x, self.word.weight).view(-1, VOCAB), labels.view(-1))


def adamw(params):
    """Return AdamW, as a single fused kernel if this PyTorch has one for the CPU."""
    settings = {'lr': 1e-4, 'betas': (0.9, 0.95), 'weight_decay': 0.1}
    try:
        return torch.optim.AdamW(params, fused=True, **settings)
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(params, **settings)


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    model = Model()
    if MODE == 'bf16':
        model = model.bfloat16()
    params = list(model.parameters())
    optimizer = adamw(params)
    tokens, labels = (torch.randint(VOCAB, (B, T)) for _ in range(2))
    seconds = []
    for i in range(STEPS + 1):
        if i == 1:
            began, began_cpu = time.perf_counter(), cpu_s()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=MODE == 'autocast'):
            loss = model(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    fraction = (cpu_s() - began_cpu) / (time.perf_counter() - began)
    step = statistics.median(seconds[1:])
    n = sum(p.numel() for p in params) - T * HIDDEN
    flop = B * T * (6 * n + 12 * LAYERS * HIDDEN * T)
    print(json.dumps({
        'name': 'PyTorch ' + torch.__version__ + LABEL, 'dtype': 'f32' if MODE == 'f32' else 'bf16', 'T': T, 'B': B,
        'params': n, 'threads': torch.get_num_threads(), 'cpu_share': round(fraction, 2), 'step_ms': round(step * 1e3, 2),
        'tokens_per_s': round(B * T / step, 1), 'gflops': round(flop / step / 1e9, 1),
        'peak_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, 'loss': round(loss.item(), 4),
    }, separators=(',', ':')))


main()
