#!/usr/bin/env python3
"""step.py T B STEPS [f32|compiled|autocast|bf16 [gpt2|llama|bert|t5]] - PyTorch's training step on the CPU, to compare with
tests/bench/step.

gpt2: GPT-2 124M, with tied head and tanh GELU.  llama: 134M, with RMSNorm, rotary positions, SwiGLU, no biases and a
separate output matrix.  bert: BERT-base, with exact GELU, norms before the blocks, and the heads for masked words and
for the order of the segments.  t5: T5-small in Megatron's arrangement, with learned positions and tanh GELU, T tokens
in the encoder and in the decoder.  Fused attention where this PyTorch has it, clipping, AdamW; random weights and inputs, no
dropout.
f32: eager mode; compiled: torch.compile; autocast: f32 weights, matrix products in bf16; bf16: weights, gradients and
AdamW's state in bf16, with no f32 copies, which is less work than meg-train --bf16 does.
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
MODEL = sys.argv[5] if len(sys.argv) > 5 else 'gpt2'
LABEL = {'f32': '', 'compiled': ', compiled', 'autocast': ', autocast', 'bf16': ', bf16 weights'}[MODE]
IS_LLAMA, IS_BERT, IS_T5 = MODEL == 'llama', MODEL == 'bert', MODEL == 't5'
LAYERS, HIDDEN, HEADS = (6, 512, 8) if IS_T5 else (12, 768, 12)
VOCAB = {'gpt2': 50257, 'llama': 32000, 'bert': 30522, 't5': 32128}[MODEL]
FFN = 2048 if IS_LLAMA else 4 * HIDDEN
GELU = 'none' if IS_BERT else 'tanh'
LATER = torch.ones(T, T, dtype=torch.bool).triu(1)


def cpu_s():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        if hasattr(F, 'rms_norm'):
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def norm():
    return RMSNorm(HIDDEN) if IS_LLAMA else nn.LayerNorm(HIDDEN)


def linear(n, m):
    return nn.Linear(n, m, bias=not IS_LLAMA)


def attention(q, k, v, is_causal):
    if hasattr(F, 'scaled_dot_product_attention'):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    w = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return (w.masked_fill(LATER, float('-inf')) if is_causal else w).softmax(-1) @ v


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def heads(x, n):
    """Return n tensors [B, HEADS, T, head size], the parts of x [B, T, n HIDDEN]."""
    return x.view(B, T, n, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)


class Layer(nn.Module):
    def __init__(self, is_causal=not IS_BERT, has_cross=False):
        super().__init__()
        self.is_causal, self.has_cross = is_causal, has_cross
        if has_cross:
            self.cross_norm, self.cross_proj = norm(), linear(HIDDEN, HIDDEN)
            self.cross_q, self.cross_kv = linear(HIDDEN, HIDDEN), linear(HIDDEN, 2 * HIDDEN)
        self.norm1, self.norm2 = norm(), norm()
        self.qkv, self.proj = linear(HIDDEN, 3 * HIDDEN), linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = linear(HIDDEN, 2 * FFN if IS_LLAMA else FFN), linear(FFN, HIDDEN)
        if IS_LLAMA:
            half = HIDDEN // HEADS // 2
            angle = torch.arange(T)[:, None] * 10000 ** (-torch.arange(half) / half)
            self.register_buffer('cos', angle.cos(), persistent=False)
            self.register_buffer('sin', angle.sin(), persistent=False)

    def mlp(self, x):
        if not IS_LLAMA:
            return self.fc2(F.gelu(self.fc1(x), approximate=GELU))
        gate, up = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * up)

    def forward(self, x, memory=None):
        q, k, v = heads(self.qkv(self.norm1(x)), 3)
        if IS_LLAMA:
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        x = x + self.proj(attention(q, k, v, self.is_causal).transpose(1, 2).reshape(B, T, HIDDEN))
        if self.has_cross:
            (q,), (k, v) = heads(self.cross_q(self.cross_norm(x)), 1), heads(self.cross_kv(memory), 2)
            x = x + self.cross_proj(attention(q, k, v, False).transpose(1, 2).reshape(B, T, HIDDEN))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer(not IS_BERT, IS_T5) for _ in range(LAYERS))
        self.norm = norm()
        if IS_T5:
            self.encoder, self.encoder_norm = nn.ModuleList(Layer(False) for _ in range(LAYERS)), norm()
            self.out_bias = nn.Parameter(torch.zeros(VOCAB))
        if IS_LLAMA:
            self.out = linear(HIDDEN, VOCAB)
        else:
            self.position = nn.Embedding(T, HIDDEN)
        if IS_BERT:
            self.types, self.out_bias = nn.Embedding(2, HIDDEN), nn.Parameter(torch.zeros(VOCAB))
            self.dense, self.head_norm = linear(HIDDEN, HIDDEN), norm()
            self.pooler, self.order = linear(HIDDEN, HIDDEN), linear(HIDDEN, 2)
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.normal_(w, 0, 0.02)

    def embed(self, tokens, types):
        x = self.word(tokens)
        if not IS_LLAMA:
            x = x + self.position.weight
        return x + self.types(types) if IS_BERT else x

    def logits(self, x):
        if IS_LLAMA:
            return self.out(x)
        if not IS_BERT:
            return F.linear(x, self.word.weight, self.out_bias if IS_T5 else None)
        return F.linear(self.head_norm(F.gelu(self.dense(x))), self.word.weight, self.out_bias)

    def forward(self, tokens, labels, types, order, enc_tokens):
        memory = None
        if IS_T5:
            memory = self.embed(enc_tokens, types)
            for layer in self.encoder:
                memory = layer(memory)
            memory = self.encoder_norm(memory)
        x = self.embed(tokens, types)
        for layer in self.layers:
            x = layer(x, memory)
        x = self.norm(x)
        loss = F.cross_entropy(self.logits(x).view(-1, VOCAB), labels.view(-1))
        if IS_BERT:
            loss = loss + F.cross_entropy(self.order(torch.tanh(self.pooler(x[:, 0]))), order)
        return loss


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
    run = torch.compile(model) if MODE == 'compiled' else model
    tokens, labels, enc_tokens = (torch.randint(VOCAB, (B, T)) for _ in range(3))
    types, order = (torch.arange(T) >= T // 2).long().expand(B, T), torch.randint(2, (B,))
    seconds = []
    for i in range(STEPS + 1):
        if i == 1:
            began, began_cpu = time.perf_counter(), cpu_s()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=MODE == 'autocast'):
            loss = run(tokens, labels, types, order, enc_tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    fraction = (cpu_s() - began_cpu) / (time.perf_counter() - began)
    step = statistics.median(seconds[1:])
    n = sum(p.numel() for p in params) - (0 if IS_LLAMA else T * HIDDEN)
    flop = B * T * (6 * n + 12 * LAYERS * (3 if IS_T5 else 1) * HIDDEN * T)
    print(json.dumps({
        'name': 'PyTorch ' + torch.__version__ + LABEL, 'dtype': 'bf16' if MODE in ('autocast', 'bf16') else 'f32',
        'T': T, 'B': B,
        'params': n, 'threads': torch.get_num_threads(), 'cpu_share': round(fraction, 2), 'step_ms': round(step * 1e3, 2),
        'tokens_per_s': round(B * T / step, 1), 'gflops': round(flop / step / 1e9, 1),
        'peak_mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, 'loss': round(loss.item(), 4),
    }, separators=(',', ':')))


main()
