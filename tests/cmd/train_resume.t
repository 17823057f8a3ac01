#!/bin/sh
# modules: train
# The checkpoint of step ten is bit-identical whether or not the run was interrupted, for each way to interrupt it and
# for any number of threads.  Dropout is enabled.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

# same NAME DIR: weights and optimizer state of iteration 10 equal those of the uninterrupted run
same() {
    ok "$1: the tensors equal those of ten steps" same_tensors "$T/full_run/iter_0000010" "$2/iter_0000010"
}

train --save "$T/full_run" --save-interval 5 --log-json "$T/full_run.jsonl" >"$T/full_run.log"
is 'an uninterrupted run succeeds' "$? $(grep -c ' consumed samples:' "$T/full_run.log") $(wc -l <"$T/full_run.jsonl" | tr -d ' ')" '0 10 15'
ok 'a complete run creates the file done' test -f "$T/full_run/done"
is 'the tracker has the last iteration' "$(cat "$T/full_run/latest_checkpointed_iteration.txt")" 10
is 'there is a file per layer group for the model and for the optimizer' \
    "$(ls "$T/full_run/iter_0000010" | grep -c '\.safetensors$')" 8

# ---- stop after five steps, and resume ----
train --save "$T/halves" --load "$T/halves" --exit-interval 5 --log-json "$T/halves.jsonl" >"$T/halves.log" 2>"$T/err"
is 'five steps succeed' $? 0
like 'an empty --load causes a warning' "$(cat "$T/err")" 'contains no checkpoint; training from scratch'
ok 'an incomplete run creates no file done' test ! -e "$T/halves/done"
train --save "$T/halves" --load "$T/halves" --log-json "$T/halves.jsonl" >>"$T/halves.log"
is 'five more steps succeed' $? 0
same 'resumed' "$T/halves"
is 'the log equals that of one run' "$(steps <"$T/halves.log")" "$(steps <"$T/full_run.log")"
timeless='del(.iteration_ms, .tokens_per_s, .tflops_per_s)'
is 'the metrics equal those of one run' "$(jq -c "$timeless" "$T/halves.jsonl")" "$(jq -c "$timeless" "$T/full_run.jsonl")"
is 'a rerun of a complete run only evaluates' "$(train --save "$T/halves" --load "$T/halves" --log-json "$T/halves.jsonl" |
    grep -c 'validation loss\|consumed')" 2
is 'a rerun of a complete run does not change the metrics' "$(jq -c "$timeless" "$T/halves.jsonl")" "$(jq -c "$timeless" "$T/full_run.jsonl")"

# ---- resume from an earlier checkpoint ----
train --save "$T/halves" --load "$T/halves" --ckpt-step 5 >"$T/log" 2>"$T/err"
is '--ckpt-step 5 runs the steps after iteration 5' "$(grep -c ' consumed samples:' "$T/log")" 5
same 'resumed from iteration 5' "$T/halves"
is 'a warning names the later checkpoint' "$(cat "$T/err")" \
    "meg-train: --ckpt-step 5: $T/halves has checkpoints up to iteration 10; this run will replace those of the iterations that it saves"

# ---- dropout seed ----
# Each document repeats a period of one sample, so that all samples have the same tokens in any order.
awk 'BEGIN { for (i = 0; i < 640; i++) line = line (i ? " " : "") i % 16 * 5
    for (i = 0; i < 20; i++) printf "{\"text\":\"%s\"}\n", line }' >"$T/same.jsonl"
meg-preprocess -q --input "$T/same.jsonl" --tokenizer-type NullTokenizer --vocab-size 100 --output-prefix "$T/same"
train_same() { train --data-path "$T/same_text_document" --eval-iters 0 "$@" >"$T/log"; }
train_same --seed 7 --save "$T/seed7"
train_same --seed 7 --save "$T/seed8" --exit-interval 5
cp -R "$T/seed8" "$T/seed8_fresh"
train_same --seed 8 --save "$T/seed8" --load "$T/seed8"
train_same --seed 8 --save "$T/seed8_fresh" --load "$T/seed8_fresh" --no-load-rng
ok "dropout continues with the seed of the checkpoint, whatever --seed is" \
    same_tensors "$T/seed7/iter_0000010" "$T/seed8/iter_0000010"
isnt 'with --no-load-rng dropout uses --seed' "$(cat "$T"/seed8_fresh/iter_0000010/model-*.safetensors | cksum)" \
    "$(cat "$T"/seed7/iter_0000010/model-*.safetensors | cksum)"

# ---- momentum SGD ----
train_sgd() { train --optimizer sgd --lr 0.1 --eval-iters 0 "$@" >"$T/log"; }
train_sgd --save "$T/sgd"
train_sgd --save "$T/sgd5" --exit-interval 5
train_sgd --save "$T/sgd5" --load "$T/sgd5"
is 'momentum SGD resumes' "$(grep -c ' consumed samples:' "$T/log")" 5
ok 'momentum SGD: the tensors are those of ten steps' same_tensors "$T/sgd/iter_0000010" "$T/sgd5/iter_0000010"
ok 'the checkpoint has the momentum' grep -qa momentum_buffer "$T"/sgd5/iter_0000010/optim-*.safetensors

# ---- --save with checkpoints of another run ----
before=$(cd "$T/halves" && ls -l)
for options in '--train-iters 7 --keep-last-n 1' "--load $T/full_run --finetune" "--load $T/halves --finetune" \
    "--load $T/full_run" --dry-run; do
    # shellcheck disable=SC2086
    status "saving over another run ends with 2: ${options#--load */}" 2 train --save "$T/halves" $options
    is 'the message comes before the first step' "$(wc -c <"$T/out" | tr -d ' ') $(cat "$T/err")" "0 meg-train: --save $T/halves: the directory contains \
checkpoints of another run, up to iteration 10; resume it with --load $T/halves, save to a different directory, or use \
--overwrite-checkpoints"
done
is 'a refused save changes nothing' "$(cd "$T/halves" && ls -l)" "$before"
status 'evaluation does not refuse the checkpoints of another run' 0 train --save "$T/halves" --load "$T/full_run" --skip-train
cp -R "$T/halves" "$T/over"
status '--overwrite-checkpoints saves over another run' 0 train --save "$T/over" --overwrite-checkpoints --exit-interval 7
is '--overwrite-checkpoints trains from the first step and updates the tracker' \
    "$(grep -c ' consumed samples:' "$T/out") $(cat "$T/over/latest_checkpointed_iteration.txt")" '7 7'

# ---- TensorBoard ----
# A run that ended at iteration 8 and a run that resumed after 5 both write iterations 6 to 8.
cp -R "$T/halves" "$T/tb_run"
tb() { train --save "$T/tb_run" --load "$T/tb_run" --ckpt-step "$1" --tensorboard-dir "$T/tb" --exit-interval "$2"; }
tb 5 8 >"$T/log" 2>"$T/err"
sleep 1 # file names contain the time in seconds, and TensorBoard reads files in order of their names
tb 5 10 >"$T/log" 2>"$T/err"
steps='import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1])
a.Reload()
print(*[e.step for tag in ("lm loss", "lm loss vs samples") for e in a.Scalars(tag)])'
if python3 -c 'import tensorboard' 2>/dev/null; then
    is 'TensorBoard has each step once' "$(python3 -c "$steps" "$T/tb" 2>/dev/null)" '6 7 8 9 10 24 28 32 36 40'
else
    skip 'TensorBoard has each step once' 'no tensorboard for python3'
fi
is 'the event files have each iteration once' "$(cat "$T"/tb/events* | tr '\n' ' ' | grep -ao 'learning-rate vs samples' | wc -l)" 5

# ---- a missing tracker ----
mkdir "$T/lost"
cp -R "$T/full_run/iter_0000005" "$T/lost"
meg-train --config "$T/conf" --save "$T/lost" --load "$T/lost" >"$T/log" 2>"$T/err"
is 'a run without a tracker resumes' $? 0
like 'a warning names the newest iteration' "$(cat "$T/err")" 'loading iteration 5, the newest complete iteration'
is 'the run continues from the newest iteration' "$(grep -c ' consumed samples:' "$T/log")" 5
same 'without a tracker' "$T/lost"

# ---- threads ----
OMP_NUM_THREADS=1 train --save "$T/one" >"$T/one.log"
OMP_NUM_THREADS=2 train --save "$T/two" >"$T/two.log"
for n in one two; do
    is "the log does not depend on the number of threads: $n" "$(steps <"$T/$n.log")" "$(steps <"$T/full_run.log")"
done
same 'one thread' "$T/one"
same 'two threads' "$T/two"

# ---- signals ----
# A shell makes commands in the background ignore SIGINT.
with_sigint() { exec perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$@"; }
for sig in TERM USR1 INT HUP; do
    rm -rf "$T/sig"
    with_sigint meg-train -q --config "$T/conf" --save "$T/sig" --load "$T/sig" --train-iters 1000000 --lr-decay-iters 10 \
        >"$T/$sig.log" 2>/dev/null &
    pid=$!
    await 60 grep -q 'consumed samples' "$T/$sig.log"
    kill -"$sig" $pid
    wait $pid
    is "SIG$sig ends the run with 75" $? 75
    last=$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/$sig.log" | tail -n 1)
    is "SIG$sig: the last step is saved" "$(cat "$T/sig/latest_checkpointed_iteration.txt")" "$last"
done
train --load "$T/sig" --save "$T/sig" --train-iters 1000000 --lr-decay-iters 10 --exit-interval $((last + 2)) >"$T/log"
is 'the run resumes from the last step' "$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/log" | head -n 1)" $((last + 1))

# A SIGHUP that is ignored at the start of the process stays ignored.
nohup meg-train -q --config "$T/conf" --load "$T/sig" --ckpt-step "$last" --finetune --save "$T/nohup" \
    --train-iters 1000000 --lr-decay-iters 10 >"$T/nohup.log" 2>"$T/err" &
pid=$!
await 60 grep -q 'consumed samples' "$T/nohup.log"
kill -HUP $pid
seen=$(wc -l <"$T/nohup.log")
ok 'under nohup a run continues after SIGHUP' until_true 60 sh -c "[ \$(wc -l <'$T/nohup.log') -gt $((seen + 10)) ]"
kill -TERM $pid
wait $pid
is 'under nohup SIGTERM ends the run with 75' $? 75
like 'the message says how to resume' "$(tail -n 1 "$T/err")" \
    "is saved in $T/nohup; to resume, run the same command with --load $T/nohup, without --finetune --ckpt-step\$"

# A signal during set-up: opening the pipe of the metrics blocks until there is a reader.
mkfifo "$T/pipe"
begin() { # DIR: start a run that blocks during set-up
    with_sigint meg-train -q --config "$T/conf" --save "$1" --log-json "$T/pipe" >/dev/null 2>&1 &
    pid=$!
    await 60 catches_usr1
}
# Test SIGUSR1, for which the shell has no trap: a child has the shell's traps until it executes the command.
catches_usr1() { [ $((0x$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "/proc/$pid/status") & 0x200)) -ne 0 ]; }
begin "$T/early"
kill -TERM $pid
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'a signal during set-up ends the run with 75' $? 75
kill $reader 2>/dev/null
is 'the first step is run and saved' "$(cat "$T/early/latest_checkpointed_iteration.txt")" 1

# ---- data truncated during a run ----
cp "$T/ids_text_document.idx" "$T/cut.idx"
cp "$T/ids_text_document.bin" "$T/cut.bin"
# With exec, $! is meg-train and not a shell.
cut_run() { exec meg-train -q --config "$T/conf" --data-path "$T/cut" --split 1,0,0 --train-iters 60 --lr-decay-iters 60 "$@"; }
(cut_run --save "$T/uncut" >"$T/uncut.log" 2>"$T/err")
cut_run --save "$T/cutrun" --log-json "$T/pipe" >"$T/cut.log" 2>"$T/cut.err" &
pid=$!
await 60 grep -qsF "$T/cut.bin" /proc/$pid/maps
kept=$(($(wc -c <"$T/cut.bin") / 4096 * 4096))
truncate -s "$kept" "$T/cut.bin"
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'data truncated during the run end it with 74' $? 74
kill $reader 2>/dev/null
last=$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/cut.log" | tail -n 1)
like 'the message has the file and the saved iteration' "$(cat "$T/cut.err")" "^meg-train: $T/cut.bin: byte [0-9]* cannot be read: \
the file was truncated, or its disk failed, while it was in use; iteration $last is saved in $T/cutrun\$"
is 'the last step is saved' "$(cat "$T/cutrun/latest_checkpointed_iteration.txt")" "$last"
cp "$T/ids_text_document.bin" "$T/cut.bin"
(cut_run --save "$T/cutrun" --load "$T/cutrun" >"$T/log" 2>"$T/err")
ok 'with the complete file the resumed run is bit-identical' same_tensors "$T/uncut/iter_0000060" "$T/cutrun/iter_0000060"

# Equal signals that are pending merge into one.  So repeat the second signal until the process ends, or, if it must not
# end the process, send it after the first one is received.
ends() { ! kill -"$1" $pid || grep -q '^State:.Z' "/proc/$pid/status"; } # the shell may have reaped it
received() { grep -q '^ShdPnd:[^0-9a-f]*0*$' "/proc/$pid/status"; }
for two in 'TERM TERM 143' 'USR1 USR1 138' 'INT INT 130' 'HUP TERM 143'; do
    # shellcheck disable=SC2086
    set -- $two
    begin "$T/sig2"
    ok "the lock exists before SIG$1" test -e "$T/sig2/.meg-lock"
    kill -"$1" $pid
    await 60 ends "$2"
    wait $pid 2>/dev/null
    is "SIG$2 after SIG$1 ends the process at once" $? "$3"
    ok "SIG$2 after SIG$1 removes the lock" test ! -e "$T/sig2/.meg-lock"
done
begin "$T/hup"
kill -HUP $pid
await 60 received
kill -HUP $pid
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'SIGHUP after SIGHUP does not end the process at once' $? 75
kill $reader 2>/dev/null

# ---- loading options ----
train --load "$T/full_run" --finetune --train-iters 1 --lr-warmup-iters 0 --eval-iters 0 >"$T/log"
like '--finetune starts at iteration 0' "$(cat "$T/log")" ' iteration        1/       1 \| consumed samples:            4 '
train --load "$T/full_run" --ckpt-step 5 --no-load-optim --eval-iters 0 >"$T/log"
like '--no-load-optim restarts the learning-rate schedule' "$(cat "$T/log")" \
    ' iteration        6/      10 \| consumed samples:           24 \|.* learning rate: 5.000000E-03'
status 'another schedule ends with 2' 2 train --load "$T/full_run" --ckpt-step 5 --lr 2e-2
like 'the message has both values' "$(cat "$T/err")" '--lr 0.02 instead of 0.01'
like '--override-opt_param-scheduler uses the new schedule' \
    "$(train --load "$T/full_run" --ckpt-step 5 --lr 2e-2 --override-opt_param-scheduler --eval-iters 0)" \
    ' iteration        6/.* learning rate: 1\.'
like '--use-checkpoint-opt_param-scheduler uses the saved schedule' \
    "$(train --load "$T/full_run" --ckpt-step 5 --lr 2e-2 --use-checkpoint-opt_param-scheduler --eval-iters 0)" \
    ' iteration        6/.* learning rate: 5\.'
train_wsd() { train --lr-decay-style WSD --lr-wsd-decay-iters "$@" --eval-iters 0; }
train_wsd 4 --save "$T/wsd" --save-interval 5 >"$T/wsd.log"
status 'another length of the WSD decay ends with 2' 2 train_wsd 2 --load "$T/wsd" --ckpt-step 5
like 'the message has both lengths' "$(cat "$T/err")" 'WSD decay samples 8 instead of 16;'
status 'another style of the WSD decay ends with 2' 2 train_wsd 4 --lr-wsd-decay-style linear --load "$T/wsd" --ckpt-step 5
like 'the message has both styles' "$(cat "$T/err")" '--lr-wsd-decay-style "linear" instead of "exponential";'
is '--use-checkpoint-opt_param-scheduler uses the saved WSD decay' \
    "$(train_wsd 2 --lr-wsd-decay-style linear --load "$T/wsd" --ckpt-step 5 --use-checkpoint-opt_param-scheduler | steps)" \
    "$(tail -n 5 "$T/wsd.log" | steps)"
status 'another model shape ends with 2' 2 train --load "$T/full_run" --num-layers 3 --hidden-size 48
like 'the message names the layers' "$(cat "$T/err")" '--num-layers'
like 'the message names the width' "$(cat "$T/err")" '--hidden-size'
status 'another number of heads ends with 2' 2 train --load "$T/full_run" --num-attention-heads 4
sed '/num-layers\|hidden-size\|num-attention-heads\|seq-length\|max-position\|tokenizer\|vocab/d' "$T/conf" >"$T/bare.conf"
status '--use-checkpoint-args uses the model options of the checkpoint' 0 \
    meg-train -q --config "$T/bare.conf" --use-checkpoint-args --load "$T/full_run" --skip-train

sed 's/^vocab-size.*/vocab-size = 127/' "$T/bare.conf" >"$T/hf.conf"
printf 'tokenizer-type = NullTokenizer\nvocab-size = 127\nseq-length = 16\n' >>"$T/hf.conf"
meg-train -q --config "$T/hf.conf" --load "$golden/models/gpt2-tiny" --save "$T/tuned" --eval-iters 0 >"$T/log"
is 'training starts from a Hugging Face model and its options' $? 0
like 'training from a Hugging Face model starts at iteration 0' "$(cat "$T/log")" '^.* iteration        1/      10 '
is 'the trained model has the width of the Hugging Face model' "$(jq -r '.options[] | select(startswith("hidden-size"))' "$T/tuned/iter_0000010/state.json")" \
    'hidden-size = 64'

train --save "$T/lean" --no-save-optim --no-save-rng --exit-interval 5 >/dev/null
is '--no-save-optim saves no optimizer state' "$(ls "$T/lean/iter_0000005" | grep -c '^optim')" 0
status 'resuming without optimizer state ends with 65' 65 train --load "$T/lean"
like 'the message has the options to continue without optimizer state' "$(cat "$T/err")" '--no-load-'
status '--no-load-optim --no-load-rng resume without optimizer state' 0 train --load "$T/lean" --no-load-optim --no-load-rng

train --save "$T/newest" --save-interval 2 --keep-last-n 2 >/dev/null
is '--keep-last-n keeps only the newest' "$(ls "$T/newest" | grep iter_ | tr '\n' ' ')" 'iter_0000008 iter_0000010 '

# ---- a damaged checkpoint ----
cp -R "$T/full_run" "$T/bad"
printf x | dd of="$(ls "$T"/bad/iter_0000010/model-*.safetensors | tail -n 1)" bs=1 seek=5000 conv=notrunc 2>/dev/null
status 'a flipped byte ends with 65' 65 train --load "$T/bad"

# ---- failed and killed saves ----
fault=${B:-build}/tests/fault.so
if [ -f "$fault" ]; then
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
    export ASAN_OPTIONS
    full() { # ITERATION OPTION...: train; the disk is full while ITERATION is saved
        in=$1
        shift
        rm -rf "$T/full"
        LD_PRELOAD=fault.so MEG_FAULT_IN="iter_$in" MEG_FAULT_AT=2 MEG_FAULT_ERRNO=ENOSPC \
            meg-train -q --config "$T/conf" --save "$T/full" "$@" >"$T/full.log" 2>"$T/err"
    }
    for async in '' --async-save; do
        # shellcheck disable=SC2086
        full 0000004 --save-interval 2 $async
        is "a failed save does not end the run${async:+, $async}" \
            "$? $(ls "$T/full" | grep iter_ | tr '\n' ' ')" '0 iter_0000002 iter_0000006 iter_0000008 iter_0000010 '
        like 'a failed save causes a warning' "$(cat "$T/err")" "^meg-train: $T/full/.*: No space left on device; \
iteration 4 is not saved; the run continues, and saves again after iteration $([ "$async" ] && echo '[0-9]*' || echo 6)\$"
        same "a failed save" "$T/full"
        # shellcheck disable=SC2086
        full 0000004 --save-interval 2 --exit-on-save-failure $async
        is '--exit-on-save-failure ends the run with 74' "$? $(ls "$T/full" | tr '\n' ' ')" \
            '74 iter_0000002 latest_checkpointed_iteration.txt '
        # shellcheck disable=SC2086
        full 0000010 --save-interval 5 $async
        is 'a failed last save ends the run with 74' "$? $(ls "$T/full" | tr '\n' ' ')" '74 iter_0000005 latest_checkpointed_iteration.txt '
        like 'the message has the file' "$(cat "$T/err")" "^meg-train: $T/full/.*: No space left on device\$"
        # shellcheck disable=SC2086
        full 0000006 --save-interval 2 --exit-interval 6 $async
        is 'a failed save before an exit ends the run with 74' "$? $(cat "$T/full/latest_checkpointed_iteration.txt")" '74 4'
    done
    five_steps() { rm -rf "$T/killed"; train --save "$T/killed" --exit-interval 5 >/dev/null; }
    sixth_step() { LD_PRELOAD=fault.so meg-train -q --config "$T/conf" --save "$T/killed" --load "$T/killed" --exit-interval 6; }
    five_steps
    MEG_FAULT_COUNT="$T/count" sixth_step >/dev/null
    n=$(cat "$T/count")
    ok "a save makes more than 20 calls ($n)" test "$n" -gt 20
    # Test the first calls, some in between, and the last calls of the save.
    for at in 1 2 $((n / 4)) $((n / 2)) $((n - 2)) $((n - 1)) "$n"; do
        five_steps
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=KILL sixth_step >/dev/null 2>&1
        is "SIGKILL at call $at of $n ends the run" $? 137
        train --save "$T/killed" --load "$T/killed" >/dev/null
        same "resumed after SIGKILL" "$T/killed"
    done
else
    skip 'SIGKILL during a save' "no $fault"
fi
done_testing
