#!/bin/sh
# needs: ranks/comm
# modules: train
# meg-train on several ranks: losses equal those of one rank, and runs resume on other numbers of ranks.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
micro-batch-size = 1
train-iters = 10
lr-warmup-iters = 2
eval-interval = 10
eval-iters = 2
save-interval = 5
EOF

for n in 1 2 4; do
    ranks "$n" meg-train -q --config "$T/conf" --save "$T/$n" --log-json "$T/$n.json" >"$T/$n.log" 2>"$T/$n.err"
    is "$n ranks: the run succeeds" $? 0
    losses "$T/$n.json" >"$T/$n.loss"
    is "$n ranks: one rank logs each iteration once" "$(grep -c 'iteration  ' "$T/$n.log")" 10
done
for n in 2 4; do
    ok "$n ranks: losses equal those of one rank" near "$T/$n.loss" "$T/1.loss"
done

# model N OPTION...: the losses of N model-parallel ranks equal those of one
model() {
    n=$1
    shift
    ranks "$n" meg-train -q --config "$T/conf" --micro-batch-size 2 --log-json "$T/t.json" "$@" >"$T/out" 2>&1
    losses "$T/t.json" >"$T/t.loss"
    rm -f "$T/t.json"
    ok "$n ranks $*: losses equal those of one rank" near "$T/t.loss" "$T/two.loss"
}
meg-train -q --config "$T/conf" --micro-batch-size 2 --log-json "$T/two.json" >"$T/out" 2>&1
losses "$T/two.json" >"$T/two.loss"
model 2 --tensor-model-parallel-size 2
model 4 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2
if fits 16; then
    model 16 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \
        --context-parallel-size 2 --use-distributed-optimizer
else
    skip 'sixteen ranks' "$cores cores"
fi

# Resuming after five of ten steps is bit-identical on the same number of ranks; on another number, losses are equal.
ranks 2 meg-train -q --config "$T/conf" --train-iters 10 --exit-interval 5 --save "$T/half" >"$T/out" 2>&1
is 'two ranks stop after five steps' "$? $(cat "$T/half/latest_checkpointed_iteration.txt")" '0 5'
cp -r "$T/half" "$T/one"
ranks 2 meg-train -q --config "$T/conf" --save "$T/half" --load "$T/half" >"$T/out" 2>&1
is 'two ranks resume' $? 0
ok 'resume is bit-identical' same_tensors "$T/2/iter_0000010" "$T/half/iter_0000010"
meg-train -q --config "$T/conf" --save "$T/one" --load "$T/one" --log-json "$T/one.json" >"$T/out" 2>&1
losses "$T/one.json" | head -n 5 >"$T/a"
jq -r 'select(.iteration > 5) | .lm_loss' "$T/1.json" | head -n 5 >"$T/b"
ok 'one rank resumes a run of two' near "$T/a" "$T/b"

# With --no-data-sharding the cyclic order is a permutation of all samples; otherwise each rank permutes its shard.
# cyclic N OPTION...: print the losses of N ranks
cyclic() {
    n=$1
    shift
    rm -f "$T/c.json"
    ranks "$n" meg-train -q --config "$T/conf" --dataloader-type cyclic --log-json "$T/c.json" "$@" >"$T/out" 2>&1
    losses "$T/c.json"
}
cyclic 1 --no-data-sharding >"$T/all"
cyclic 2 --no-data-sharding >"$T/c.loss"
ok '--no-data-sharding: losses equal those of one rank' near "$T/c.loss" "$T/all"
cyclic 2 >"$T/c.loss"
differ() { ! near "$@" && near "$1" "$1"; }
ok 'with data sharding losses differ' differ "$T/c.loss" "$T/all" 1e-3

# --skip-train only evaluates; all layers then use one activation buffer.
evaluated() { sed -n 's/.*lm loss value: \([^ ]*\) .*/\1/p' "$1"; }
set -- -v --config "$T/conf" --num-layers 4 --global-batch-size 4 --skip-train
meg-train "$@" 2>&1 | cat >"$T/out"
evaluated "$T/out" >"$T/want"
for l in '--tensor-model-parallel-size 2' '--pipeline-model-parallel-size 2' \
    '--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2' \
    '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t*3|t|L' \
    '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t*4L' \
    '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|L' \
    '--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method block --recompute-num-layers 1'; do
    # shellcheck disable=SC2086
    ranks 2 meg-train "$@" $l >"$T/out" 2>&1
    evaluated "$T/out" >"$T/got"
    ok "--skip-train $l: losses equal those of one rank" near "$T/got" "$T/want"
    like "--skip-train $l: arenas have the planned size" "$(cat "$T/out")" 'since the start, [0-9.]+ MiB planned$'
done

# parameters N OPTION...: print the numbers of parameters that N ranks log
parameters() {
    n=$1
    shift
    ranks "$n" meg-train --config "$T/conf" --train-iters 1 --lr-warmup-iters 0 --eval-iters 0 "$@" 2>/dev/null |
        sed -n 's/^ > number of parameters on (tensor, pipeline) model parallel rank //p' | tr '\n' ' '
}
# Two layers have 12704 parameters each, the word embedding 51 rows and the position embedding 16 rows of 32, the final
# norm 64.  The last stage has a copy of the tied word embedding.
is 'each tensor-parallel rank has its number of parameters' "$(parameters 2 --tensor-model-parallel-size 2)" \
    '(0, 0): 14304 (1, 0): 14272 '
is 'each pipeline stage has its number of parameters' "$(parameters 2 --pipeline-model-parallel-size 2)" \
    '(0, 0): 14848 (0, 1): 14400 '

# The number of GPUs in progress.txt is that of all ranks.
ranks 2 meg-train -q --config "$T/conf" --tensor-model-parallel-size 2 --train-iters 1 --lr-warmup-iters 0 \
    --eval-iters 0 --save "$T/counted" --log-progress >"$T/out" 2>&1
is 'progress.txt counts tensor-parallel ranks' "$(cut -f 3,4 "$T/counted/progress.txt" | tr '\t\n' ' ,')" \
    '# GPUs: 2 Starting job,# GPUs: 2 Saved checkpoint,'

done_testing
