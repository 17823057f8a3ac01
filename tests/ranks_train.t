#!/bin/sh
# needs: ranks/comm
# meg-train on several ranks: losses equal those of one rank, runs resume on other numbers of ranks, and an error or
# a signal of one rank ends all ranks.
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

for option in --version --help --dump-config; do
    ranks 2 meg-train $option >"$T/out" 2>"$T/err"
    is "two ranks accept $option without a message" "$? $(wc -c <"$T/err" | tr -d ' ')" '0 0'
done

# A usage error is reported once and ends all ranks.
ranks 2 meg-train -q --config "$T/conf" --global-batch-size 3 >"$T/out" 2>"$T/err"
is 'a batch size that ranks do not divide ends with 2' $? 2
is 'the batch size is reported once' "$(grep -c -- '--global-batch-size' "$T/err")" 1

# A failed rank ends the run at once, also during overlapped communication.
begin_s=$(date +%s)
fail="export LD_PRELOAD=fault.so MEG_FAULT_IN=iter_0000005 MEG_FAULT_AT=2 MEG_FAULT_ERRNO=ENOSPC"
ranks_but 2 0 "$fail ASAN_OPTIONS=verify_asan_link_order=0" meg-train -q --config "$T/conf" --num-layers 4 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 1000 \
    --distributed-timeout-minutes 1 --save "$T/disk" --exit-on-save-failure >"$T/out" 2>"$T/err"
is 'a save that fails during a parameter gather ends with 74' $? 74
like 'the message names the file' "$(cat "$T/err")" '^meg-train: .*/disk/iter_0000005.*: No space left'
ok 'the failed save ends the run before the timeout' test "$(($(date +%s) - begin_s))" -lt 50

# A signal to one rank stops all ranks.
stop='"$@" & pid=$! n=0; until [ -s "$OUT" ] || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done
    kill -USR1 $pid; wait $pid; exit'
OUT="$T/stop.log" ranks_but 2 1 "$stop" meg-train -q --config "$T/conf" --train-iters 100000 --eval-iters 0 \
    --save "$T/stop" >"$T/stop.log" 2>"$T/err"
is 'a signal to one rank ends all with 75' $? 75
ok 'a signal to one rank saves a checkpoint' test -s "$T/stop/latest_checkpointed_iteration.txt"

# If a data file is truncated during training, all ranks save, then one reports it.  The pipe of --log-json has no
# reader at first, which blocks rank 0 until both ranks have mapped the data.
. "${0%/*}/train.sh"
cp "$T/ids_text_document.idx" "$T/cut.idx"
cp "$T/ids_text_document.bin" "$T/cut.bin"
mkfifo "$T/pipe"
start_ranks 2 meg-train -q --config "$T/conf" --micro-batch-size 1 --data-path "$T/cut" --split 1,0,0 --train-iters 60 \
    --save "$T/cutrun" --log-json "$T/pipe"
for r in 0 1; do
    await 60 test -s "$T/pid.$r"
    await 60 grep -qsF "$T/cut.bin" "/proc/$(cat "$T/pid.$r")/maps"
done
truncate -s $(($(wc -c <"$T/cut.bin") / 4096 * 4096)) "$T/cut.bin"
cat "$T/pipe" >/dev/null &
reader=$!
wait $launcher
is 'a data file truncated during training ends with 74' $? 74
kill $reader 2>/dev/null
last=$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/out" | tail -n 1)
is 'one rank reports the truncated file' "$(grep -c "^meg-train.*: $T/cut.bin: byte .*; iteration $last is saved in $T/cutrun\$" "$T/err")" 1
is 'the last step before the truncation is saved' "$(cat "$T/cutrun/latest_checkpointed_iteration.txt")" "$last"

# While rank 0 waits in a write of the index, it logs the build.  If it is stopped during the build, the run ends.
slow="export LD_PRELOAD=fault.so MEG_FAULT_IN=/slow/ MEG_FAULT_AT=1 MEG_FAULT_ERRNO=WAIT MEG_FAULT_GO='$T/go' \
    ASAN_OPTIONS=verify_asan_link_order=0"
start_ranks 2 sh -c "if [ $rank_of_launcher = 0 ]; then $slow; fi; "'exec "$@"' sh meg-train --config "$T/conf" \
    --data-cache-path "$T/slow" --distributed-timeout-minutes 0.05
building='^meg-train: rank 0 of 2 on .* is loading or building the index of ids_text_document, for 1[0-9] s so far; '
ok 'rank 0 logs a build of an index that takes 10 s' until_true 60 grep -q "$building" "$T/err"
kill -STOP "$(cat "$T/pid.0")"
wait $launcher
isnt 'a rank is stopped during the build: the launcher fails' $? 0
like 'the message names the rank and the index' "$(cat "$T/err")" \
    'rank 0 of 2 on .* sent no heartbeat .* before the first step, loading or building the index of ids_text_document'
done_testing
