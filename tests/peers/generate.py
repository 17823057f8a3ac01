#!/usr/bin/env python3
"""generate.py DIR BATCH PROMPT TOKENS f32|bf16 dynamic|compiled - greedy decoding with Hugging Face transformers, to
compare with meg-generate on the same model.

BATCH prompts of PROMPT tokens each are continued by TOKENS tokens.  dynamic: the default KV cache; compiled: a KV cache of
fixed size, and torch.compile.  The first call is not measured.
Runs on as many threads as this process has processors.  Prints one JSON line.
"""
import os

THREADS = len(os.sched_getaffinity(0))

import json
import sys
import time

import torch
import transformers

DIR = sys.argv[1]
BATCH, PROMPT, TOKENS = (int(x) for x in sys.argv[2:5])
DTYPE, CACHE = sys.argv[5:7]

torch.set_num_threads(THREADS)
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(
    DIR, dtype={'f32': torch.float32, 'bf16': torch.bfloat16}[DTYPE])
prompts = torch.tensor([[(i * 131 + t * 7) % 50000 for t in range(PROMPT)] for i in range(BATCH)])
options = {}
if CACHE == 'compiled':
    options = {'cache_implementation': 'static'}
    model.forward = torch.compile(model.forward)
for _ in range(2):
    start, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS,
                             min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, **options)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
assert ids.shape == (BATCH, PROMPT + TOKENS)
print(json.dumps({'name': f'transformers {transformers.__version__}, torch {torch.__version__}, {CACHE}',
                  'batch': BATCH, 'dtype': DTYPE, 'tokens_per_s': BATCH * TOKENS / seconds,
                  'cpu_share': cpu / seconds}))
