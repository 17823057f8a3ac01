#!/bin/sh
# modules: plan
# Estimates of meg-train: --dry-run for another number of ranks, --plan, and a run that does not fit in memory.
. "${0%/*}/../lib.sh"

cat >"$T/conf" <<'EOF'
num-layers = 96
hidden-size = 12288
num-attention-heads = 96
seq-length = 2048
max-position-embeddings = 2048
micro-batch-size = 1
global-batch-size = 1536
train-iters = 10
lr = 6e-5
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 50256
EOF
estimate() { meg-train -q --config "$T/conf" "$@"; }

# ---- --dry-run ----
estimate --dry-run --world-size 1024 --hardware a100 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --sequence-parallel >"$T/plan"
is 'a dry run of GPT-3 175B on 1,024 ranks succeeds' $? 0
like 'the dry run prints the layout' "$(cat "$T/plan")" '^layout +1024 ranks: tensor 8 with sequence, context 1, pipeline 16, data 8$'
like 'the dry run prints the number of parameters' "$(cat "$T/plan")" '^  all +1156 +174604259328$'
like 'memory has a column for each type of stage' "$(cat "$T/plan")" '^memory, MiB +stage 0 +stage 1 +stage 15 *$'
like 'the stage that needs the most memory is named' "$(cat "$T/plan")" '^  most: stage 0$'
like 'bytes sent are printed by group' "$(cat "$T/plan")" '^  data-parallel +[0-9.]+ +[0-9.]+ +[0-9.]+$'
like 'only the first and the last stage exchange the embedding gradient' "$(cat "$T/plan")" '^  embedding +[0-9.]+ +0\.0 +[0-9.]+$'
like 'the bubble is 15 of 192 micro-batches, and the unequal first and last stage' "$(cat "$T/plan")" '^  bubble +7\.[0-9]%$'
like 'the dry run estimates the time' "$(cat "$T/plan")" '^  all +[0-9]+$'
estimate --dry-run --world-size 98304 --hardware h100 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 >"$T/plan"
like '98,304 ranks are possible' "$(cat "$T/plan")" '^layout +98304 ranks: tensor 8, context 1, pipeline 8, data 1536$'
status 'messages of more than 2^31 elements are possible' 0 estimate --dry-run --world-size 1024 --hardware h100 \
    --pipeline-model-parallel-size 16 --context-parallel-size 2 --seq-length 524288 --max-position-embeddings 524288
estimate --dry-run --world-size 8 --hardware h100 --pipeline-model-parallel-size 8 \
    --pipeline-model-parallel-layout 'E|t*10|t*10|t*40|t*10|t*26||L' >"$T/plan"
like 'the numbers of layers of unequal stages are printed' "$(cat "$T/plan")" '^layers +by stage: 0 10\*2 40 10 26 0\*2$'
like 'memory has a column for each number of layers' "$(cat "$T/plan")" \
    '^memory, MiB +stage 0 +stage 1 +stage 3 +stage 5 +stage 6 +stage 7 *$'
like 'the stage with the most layers needs the most memory' "$(cat "$T/plan")" '^  most: stage 3$'
like 'a stage without layers has no parameters' "$(cat "$T/plan")" '^  parameters +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +0\.0 +[0-9.]+$'
time_of() { # OPTION...: print the seconds of a step and the bubble of 32 layers on 8 stages
    estimate --dry-run --world-size 8 --hardware h100 --num-layers 32 --pipeline-model-parallel-size 8 "$@" |
        awk '/^time/ { seen = 1 } seen && $1 == "all" { seconds = $2 } $1 == "bubble" { print seconds, $2 }'
}
time_of >"$T/equal"
is 'equal stages take the same time, whichever option describes them' \
    "$(time_of --pipeline-model-parallel-layout 'E(t*4|)*7t*4L')" "$(cat "$T/equal")"
is 'equal chunks, too' "$(time_of --pipeline-model-parallel-layout 'E(tt|)*15ttL')" \
    "$(time_of --num-virtual-stages-per-pipeline-rank 2)"
time_of --pipeline-model-parallel-layout 'E(t*4|)*4|(t*8|)*2L' >"$T/unequal"
is 'a step takes at least 1.8 times as long with twice as many layers on the fullest stage' \
    "$(paste -d ' ' "$T/unequal" "$T/equal" | awk '{ print ($1 > 1.8 * $3) }')" 1
estimate --dry-run --world-size 8 --hardware h100 --tensor-model-parallel-size 8 >"$T/plan"
like 'a layout that does not fit is marked' "$(cat "$T/plan")" '^  does not fit: a rank has 76294 MiB$'
estimate --dry-run --world-size 8 --hardware cpu --tensor-model-parallel-size 8 --async-save --save "$T/ck" >"$T/plan"
like 'memory includes receive buffers on CPUs' "$(cat "$T/plan")" '^  receive buffers +[1-9][0-9.]*$'
like 'memory includes the staging buffer of an asynchronous save' "$(cat "$T/plan")" '^  asynchronous save +[1-9][0-9.]*$'
estimate --dry-run --world-size 8 --hardware h100 --tensor-model-parallel-size 8 --async-save --save "$T/ck" >"$T/plan"
like 'on GPUs, this buffer is host memory' "$(tail -n +"$(grep -n '^  all' "$T/plan" | cut -d: -f1 | head -n 1)" "$T/plan")" \
    '^  asynchronous save .host. +[1-9][0-9.]*$'

# ---- --plan ----
estimate --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --global-batch-size 64 --plan --world-size 16 \
    --hardware h100 >"$T/plan"
is 'a plan of 16 GPUs succeeds' $? 0
is 'five layouts are printed, with their options' "$(grep -c '^[1-5] ' "$T/plan") $(grep -c '^[1-5]  --micro' "$T/plan")" '10 5'
is 'the fastest layout is first' "$(awk '/^[1-5] +[0-9]+[s ] / { v = $(NF - 1); if (v < last) bad = 1; last = v; n++ } END { print n, bad + 0 }' \
    "$T/plan")" '5 0'
options=$(sed -n 's/^1  --/--/p' "$T/plan")
# shellcheck disable=SC2086
status 'the printed options are valid' 0 estimate --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --global-batch-size 64 --dry-run --world-size 16 --hardware h100 $options
is 'the printed options have the printed time' "$(awk '/^time/ { seen = 1 } seen && $1 == "all" { printf "%.3g\n", $2 }' "$T/out")" \
    "$(awk '/^1 / { printf "%.3g\n", $(NF - 1); exit }' "$T/plan")"
estimate --num-layers 48 --hidden-size 8192 --num-attention-heads 64 --global-batch-size 64 --bf16 --plan --world-size 64 \
    --hardware h200 >"$T/plan"
ok 'layouts with sequence parallelism are candidates' grep -q '^[1-5] *[248]s ' "$T/plan"
is 'their options select it' "$(grep -c -e '--sequence-parallel' "$T/plan")" "$(grep -c '^[1-5] *[248]s ' "$T/plan")"
sed '/^global-batch-size/d; /^micro-batch-size/d' "$T/conf" >"$T/small.conf"
here() { # OPTION...: print the ranks and the batch size of --plan without --world-size
    meg-train -q --config "$T/small.conf" --num-layers 2 --hidden-size 64 --num-attention-heads 4 --plan "$@" |
        sed -n 's/^the fastest layouts of \([0-9]* ranks\) .*; batch \([0-9]*\)$/\1, \2/p'
}
is 'without --world-size the plan is for the ranks of the run' "$(here)" '1 ranks, 1'
is 'the default batch is one micro-batch per rank' "$(here --micro-batch-size 2)" '1 ranks, 2'
status 'a model that fits no layout ends with 1' 1 estimate --plan --world-size 4 --hardware a100
like 'the message names ranks, hardware and memory' "$(cat "$T/err")" \
    '^meg-train: --plan: none of [0-9]+ layouts of 4 ranks on a100 is valid and fits in [0-9.]+ GiB per rank'

# ---- errors ----
status '--world-size without --dry-run or --plan ends with 2' 2 estimate --world-size 8
like 'the message says which options --world-size requires' "$(cat "$T/err")" '^meg-train: --world-size 8: requires --dry-run or --plan'
status '--world-size 0 ends with 2' 2 estimate --dry-run --world-size 0
status 'unknown hardware ends with 2' 2 estimate --dry-run --hardware tpu
status 'a run that does not fit in memory ends with 1' 1 estimate
like 'the message compares needed and available memory' "$(cat "$T/err")" '^meg-train: not enough memory on .*: 1 rank needs [0-9.]+ GiB, but only [0-9.]+ GiB are available'
done_testing
