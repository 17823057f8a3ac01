#!/bin/sh
# modules: train
# How a run ends whose last iterations are skipped, that cannot print, or whose options ask for the impossible.
. "${0%/*}/../lib.sh"
cd "$T" || exit 1
export OMP_NUM_THREADS=1
seq 1 400 | paste -s -d ' ' | sed 's/.*/{"text":"&"}/' |
    meg-preprocess -q --tokenizer-type NullTokenizer --vocab-size 999 --input - --output-prefix ids || exit 1
# shellcheck disable=SC2086 # words
train() { meg-train -q $options "$@" >out 2>err; }
options="--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 4 --max-position-embeddings 4
    --micro-batch-size 1 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 999 --data-path ids_text_document
    --split 1,0,0 --eval-iters 0 --log-interval 1"

# With this learning rate the first iteration makes all weights so large that no later loss is finite.
train --lr 1e30 --on-nan skip --train-iters 8 --save nan
is 'a short run whose last iterations are skipped fails' "$? $(tail -n 1 err)" \
    "1 meg-train: the last 7 of 8 iterations were skipped because a loss or gradient is not finite; check the data, or try a lower --lr or --clip-grad"
ok 'its checkpoint is saved, but the run is not marked as done' test -d nan/iter_0000008 -a ! -e nan/done
train --lr 1e30 --on-nan skip --train-iters 8 --exit-interval 4 --save nan4
is 'so does one that --exit-interval ends' "$? $(tail -n 1 err | sed 's/ were.*//')" '1 meg-train: the last 3 of 4 iterations'
train --lr 1e30 --on-nan skip --train-iters 40
is 'a longer run ends after the tenth such iteration in a row' "$? $(grep -c ' nan iterations:   1 ' out)" '1 9'
like 'the message names the limit' "$(cat err)" 'this is the 10th such iteration in a row, the limit of --on-nan skip'
# The search for the loss scale skips the first iterations, all of this short run.
train --fp16 --train-iters 8
is 'a run ends well while it searches for the loss scale' "$? $(grep -c 'skipped iterations:   1' out)" '0 8'

# ---- standard output ----

options="$options --lr 1e-3"
# shellcheck disable=SC2086 # words
meg-train -q $options --train-iters 2 --save closed >&- 2>err
is 'closed standard output' "$? $(cat err)" '74 meg-train: standard output: Bad file descriptor'
# shellcheck disable=SC2086 # words
if [ -w /dev/full ]; then
    meg-train -q $options --train-iters 2 --save full >/dev/full 2>err
    is 'full standard output' "$? $(cat err)" '74 meg-train: standard output: No space left on device'
    ok 'the checkpoint is saved' meg-convert --info full --verify
else
    skip 'full standard output' 'no /dev/full'
fi

# ---- options ----

train --train-iters 3000000000000
is 'an index that exceeds the memory is refused before it is built' "$? $(tail -n 1 err | sed 's/ but this host.*memory;/ ...;/')" \
    "1 meg-train: the train split: 3000000000000 samples have an index of at least 36000 GB, ...; use a smaller --train-iters, --train-samples or --eval-iters"

train --train-iters 2 --save a
train --train-iters 4 --load a --no-load-optim --use-checkpoint-opt_param-scheduler
like '--use-checkpoint-opt_param-scheduler without the state of the optimizer has no effect, which a warning says' \
    "$? $(cat err)" '0 .*--use-checkpoint-opt_param-scheduler has no effect with --no-load-optim, as in Megatron-LM'
train --train-iters 4 --load a --use-checkpoint-opt_param-scheduler
is 'with it, there is no warning' "$? $(cat err)" '0 '
done_testing
