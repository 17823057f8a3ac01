#!/bin/sh
# needs: ranks/comm toy
# modules: plan
# The ranks of a T5, and of families that are not in the library (tests/toy), send the bytes that the cost model
# predicts.  tests/layouts.t compares GPT and BERT.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/bert.sh"

sed '/^model\|^seq-length\|^max-position\|^lr-warmup\|^split/d' "$T/conf" >"$T/t5.conf"
cat >>"$T/t5.conf" <<'end'
model = t5
decoder-num-layers = 2
seq-length = 48
decoder-seq-length = 24
max-position-embeddings = 48
vocab-extra-ids = 30
train-iters = 1
eval-iters = 0
split = 100,0,0
end
as_planned() { # N OPTION...: each group of the ranks sends the planned number of bytes in a step
    n=$1
    shift
    ranks "$n" meg-train -v --config "$T/$model.conf" "$@" >"$T/out" 2>&1
    is "$model, $n ranks $*: bytes are sent as planned" \
        "$(sed -n 's/.*sent per step: //p' "$T/out" | tr ';' '\n' | sed 's/.*bytes, //' | sort -u)" 'as planned'
    is "$model, $n ranks $*: arenas are as planned" "$(grep -c 'since the start, [0-9.]* MiB planned$' "$T/out")" 1
}
model=t5
as_planned 2 --tensor-model-parallel-size 2
as_planned 2 --tensor-model-parallel-size 2 --sequence-parallel --recompute-activations
as_planned 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
relative='--position-embedding-type relative'
# shellcheck disable=SC2086 # an option and its value
{
    as_planned 2 $relative --zero-stage 3
    as_planned 4 $relative --pipeline-model-parallel-size 4 --use-distributed-optimizer
    as_planned 4 $relative --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
        --recompute-granularity full --recompute-method block --recompute-num-layers 1
}
# the first of two stages has the encoder and the first layer of the decoder; stored layer inputs are sharded
as_planned 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 1 --decoder-num-layers 3 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --distribute-saved-activations

cat >"$T/toy.conf" <<'end'
model = toy
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 32
max-position-embeddings = 32
micro-batch-size = 2
global-batch-size = 8
lr = 1e-2
train-iters = 1
eval-iters = 0
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 100
end
PATH=$B/tests/toy:$PATH
model=toy
as_planned 2 --tensor-model-parallel-size 2
as_planned 4 --tensor-model-parallel-size 2 --zero-stage 2 --num-layers 1
as_planned 4 --pipeline-model-parallel-size 4 --pipeline-schedule zb-h1
as_planned 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1

sed 's/^model = .*/model = experts/' "$T/toy.conf" >"$T/experts.conf"
model=experts
ep='--expert-model-parallel-size 2' etp=--expert-tensor-parallel-size
tp='--tensor-model-parallel-size 2 --sequence-parallel'
# shellcheck disable=SC2086 # options and their values
{
    as_planned 4 $ep
    as_planned 4 $ep --use-distributed-optimizer --ddp-bucket-size 2000
    as_planned 4 $ep $tp --use-distributed-optimizer
    as_planned 4 $ep --pipeline-model-parallel-size 2
    as_planned 4 $etp 1 $tp
    as_planned 4 $etp 1 $tp --use-distributed-optimizer --untie-embeddings-and-output-weights --vocab-size 101
    as_planned 8 $etp 1 $ep $tp --pipeline-model-parallel-size 2
    as_planned 4 $etp 2 $ep --use-distributed-optimizer
    as_planned 4 $ep --zero-stage 2
    as_planned 4 $ep --zero-stage 3
    export ROUTER=1
    as_planned 4 $ep --bf16 --zero-stage 2
    as_planned 4 $ep --bf16 --zero-stage 3
    as_planned 4 $ep --bf16
    as_planned 4 $ep --bf16 --use-distributed-optimizer --ddp-bucket-size 2000
}
done_testing
