#!/bin/sh
# needs: ranks/comm
# Training a GPT of 45M parameters on 1 and 2 ranks uses the memory that the cost model estimates (meg-train -v prints
# both), within 5 percent.
. "${0%/*}/lib.sh"
. "${0%/*}/ranks.sh"
if nm "$(command -v meg-train)" 2>/dev/null | grep -q __asan_init; then
    skip_all 'a sanitizer uses memory of its own'
fi
[ "$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 2 ] || skip_all 'needs 2 GiB of memory'

# The index of --mock-data takes 50 MiB.
tiny_gpt >/dev/null
cat >"$T/conf" <<EOF
data-path = $T/tiny_text_document
split = 100,0,0
num-layers = 4
hidden-size = 768
num-attention-heads = 12
seq-length = 16
max-position-embeddings = 1024
micro-batch-size = 4
global-batch-size = 8
train-iters = 1
lr = 1e-4
tokenizer-type = NullTokenizer
vocab-size = 20000
eval-iters = 0
EOF

# uses_planned NAME COMMAND...: memory used since the start of COMMAND is within 5 percent of the planned memory
uses_planned() {
    name=$1
    shift
    "$@" >"$T/out" 2>&1
    sed -n 's/.* \([0-9.]*\) MiB since the start, \([0-9.]*\) MiB planned$/\1 \2/p' "$T/out" >"$T/two"
    is "$name: memory is as planned (used, planned MiB: $(cat "$T/two"))" \
        "$(awk '{ print ($1 < 1.05 * $2 && $1 > 0.95 * $2) }' "$T/two")" 1
}
uses_planned 'one rank' meg-train -v --config "$T/conf"
uses_planned 'bf16 optimizer state' meg-train -v --config "$T/conf" --bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 \
    --exp-avg-sq-dtype bf16
if [ -x "$B/tests/ranks/comm" ]; then
    uses_planned 'two data-parallel ranks' ranks 2 meg-train -v --config "$T/conf"
    uses_planned 'two pipeline stages' ranks 2 meg-train -v --config "$T/conf" --pipeline-model-parallel-size 2
    uses_planned 'two tensor-parallel ranks' ranks 2 meg-train -v --config "$T/conf" --tensor-model-parallel-size 2 --seq-length 64
else
    skip 'two ranks' 'this build has no MPI'
fi
done_testing
