#!/bin/sh
# needs: ranks/comm
# modules: watchdog
# meg-train on several ranks ends all of them if one has an error, receives a signal or stops.  make check-mpich runs this
# test also with MPICH.
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
