#!/bin/sh
# Compare the training step of each family of models in f32 with PyTorch, eager and compiled, by step.sh, which describes
# the output and the variables.  Compiling requires torch 2 and a C++ compiler.
set -eu
export BENCH_CPU_MODELS="${BENCH_CPU_MODELS:-gpt2 llama bert t5}" BENCH_DTYPES="${BENCH_DTYPES:-f32}"
export BENCH_F32="${BENCH_F32:-f32 compiled}" BENCH_T="${BENCH_T:-128}" BENCH_RUNS="${BENCH_RUNS:-3}"
export BENCH_STEPS="${BENCH_STEPS:-3}"
exec "${0%/*}/step.sh"
