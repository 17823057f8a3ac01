#!/bin/sh
# meg-train on paper: --dry-run for ranks there are not, --plan, and memory that is not there.
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
paper() { meg-train -q --config "$T/conf" "$@"; }

# ---- ranks that are not there ----
paper --dry-run --world-size 1024 --hardware a100 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --sequence-parallel >"$T/plan"
is 'GPT-3 175B on 1,024 ranks' $? 0
like 'its layout' "$(cat "$T/plan")" '^layout +1024 ranks: tensor 8 with sequence, context 1, pipeline 16, data 8$'
like 'its parameters' "$(cat "$T/plan")" '^  all +1156 +174604259328$'
like 'a column for each kind of stage' "$(cat "$T/plan")" '^memory, MiB +stage 0 +stage 1 +stage 15 *$'
like 'the fullest is named' "$(cat "$T/plan")" '^  most: stage 0$'
like 'messages' "$(cat "$T/plan")" '^  data-parallel +[0-9.]+ +[0-9.]+ +[0-9.]+$'
like 'no messages inside one copy of a stage' "$(cat "$T/plan")" '^  embedding +[0-9.]+ +0\.0 +[0-9.]+$'
like 'its bubble: 15 of 192 micro-batches, and the uneven ends' "$(cat "$T/plan")" '^  bubble +7\.[0-9]%$'
like 'its time' "$(cat "$T/plan")" '^  all +[0-9]+$'
paper --dry-run --world-size 98304 --hardware h100 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 >"$T/plan"
like '98,304 ranks' "$(cat "$T/plan")" '^layout +98304 ranks: tensor 8, context 1, pipeline 8, data 1536$'
paper --dry-run --world-size 8 --hardware h100 --tensor-model-parallel-size 8 >"$T/plan"
like 'what does not fit' "$(cat "$T/plan")" '^  does not fit: a rank has 76294 MiB$'
paper --dry-run --world-size 8 --hardware cpu --tensor-model-parallel-size 8 --async-save --save "$T/ck" >"$T/plan"
like 'what arrives takes memory between processes' "$(cat "$T/plan")" '^  arriving messages +[1-9][0-9.]*$'
like 'and so does a save in the background' "$(cat "$T/plan")" '^  copy of a save +[1-9][0-9.]*$'

# ---- layouts ----
paper --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --global-batch-size 64 --plan --world-size 16 \
    --hardware h100 >"$T/plan"
is 'layouts of 16 GPUs' $? 0
is 'five are shown, with their options' "$(grep -c '^[1-5] ' "$T/plan") $(grep -c '^[1-5]  --micro' "$T/plan")" '10 5'
is 'fastest first' "$(awk '/^[1-5] +[0-9]+[s ] / { v = $(NF - 1); if (v < last) bad = 1; last = v; n++ } END { print n, bad + 0 }' \
    "$T/plan")" '5 0'
options=$(sed -n 's/^1  --/--/p' "$T/plan")
# shellcheck disable=SC2086
status 'the options can be pasted' 0 paper --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --global-batch-size 64 --dry-run --world-size 16 --hardware h100 $options
is 'and give the same time' "$(awk '/^time/ { seen = 1 } seen && $1 == "all" { printf "%.3g\n", $2 }' "$T/out")" \
    "$(awk '/^1 / { printf "%.3g\n", $(NF - 1); exit }' "$T/plan")"
sed '/^global-batch-size/d; /^micro-batch-size/d' "$T/conf" >"$T/small.conf"
here() { # OPTION...: whom --plan plans for without --world-size, and the batch
    meg-train -q --config "$T/small.conf" --num-layers 2 --hidden-size 64 --num-attention-heads 4 --plan "$@" |
        sed -n 's/^the fastest layouts of \([0-9]* ranks\) .*; batch \([0-9]*\)$/\1, \2/p'
}
is 'without --world-size: the ranks there are' "$(here)" '1 ranks, 1'
is 'with a micro-batch each' "$(here --micro-batch-size 2)" '1 ranks, 2'
status 'none fits' 1 paper --plan --world-size 4 --hardware a100
like 'which is said' "$(cat "$T/err")" '^meg-train: --plan: none of [0-9]+ layouts of 4 ranks on a100 fits in [0-9.]+ GiB per rank'

# ---- what is refused ----
status 'more ranks than there are, without a dry run' 2 paper --world-size 8
like 'is refused' "$(cat "$T/err")" '^meg-train: --world-size 8: needs --dry-run or --plan'
status 'no rank' 2 paper --dry-run --world-size 0
status 'other hardware' 2 paper --dry-run --hardware tpu
status 'more than the memory there is' 1 paper
like 'is said before it is taken' "$(cat "$T/err")" '^meg-train: not enough memory on .*: 1 rank needs [0-9.]+ GiB, and [0-9.]+ GiB are available'
done_testing
