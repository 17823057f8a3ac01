#!/bin/sh
# Ten steps are the same bytes whether or not the run was stopped in between, however it was stopped,
# and for any number of threads.  Dropout is on.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

# weights and optimizer state of iteration 10 are the same
same() { # NAME DIR
    ok "$1: the tensors of ten steps" same_tensors "$T/whole/iter_0000010" "$2/iter_0000010"
}

train --save "$T/whole" --save-interval 5 --log-json "$T/whole.jsonl" >"$T/whole.log"
is 'ten steps' "$? $(grep -c ' consumed samples:' "$T/whole.log") $(wc -l <"$T/whole.jsonl" | tr -d ' ')" '0 10 15'
ok 'done is there' test -f "$T/whole/done"
is 'the tracker' "$(cat "$T/whole/latest_checkpointed_iteration.txt")" 10
is 'a file a section, for the model and for the optimizer' \
    "$(ls "$T/whole/iter_0000010" | grep -c '\.safetensors$')" 8

# ---- five and five ----
train --save "$T/halves" --load "$T/halves" --exit-interval 5 --log-json "$T/halves.jsonl" >"$T/halves.log" 2>"$T/err"
is 'five steps' $? 0
like 'nothing to load is said' "$(cat "$T/err")" 'no checkpoint there: starting from scratch'
ok 'not done' test ! -e "$T/halves/done"
train --save "$T/halves" --load "$T/halves" --log-json "$T/halves.jsonl" >>"$T/halves.log"
is 'and five more' $? 0
same 'five and five' "$T/halves"
is 'the same log' "$(steps <"$T/halves.log")" "$(steps <"$T/whole.log")"
timeless='del(.iteration_ms, .tokens_per_s, .tflops_per_s)'
is 'the same metrics, each line once' "$(jq -c "$timeless" "$T/halves.jsonl")" "$(jq -c "$timeless" "$T/whole.jsonl")"
is 'once done, a rerun only evaluates' "$(train --save "$T/halves" --load "$T/halves" --log-json "$T/halves.jsonl" |
    grep -c 'validation loss\|consumed')" 2
is 'and leaves the metrics as they are' "$(jq -c "$timeless" "$T/halves.jsonl")" "$(jq -c "$timeless" "$T/whole.jsonl")"

# ---- from an earlier one ----
train --save "$T/halves" --load "$T/halves" --ckpt-step 5 >"$T/log" 2>"$T/err"
is '--ckpt-step' "$(grep -c ' consumed samples:' "$T/log")" 5
same 'from iteration 5 again' "$T/halves"
is 'which warns of the later one' "$(cat "$T/err")" \
    "meg-train: --ckpt-step 5: $T/halves has checkpoints up to iteration 10, which this run will replace"

# ---- the seed of dropout ----
# Documents of one period a sample: every sample has the same tokens, in whatever order the seed of the data puts them.
awk 'BEGIN { for (i = 0; i < 640; i++) line = line (i ? " " : "") i % 16 * 5
    for (i = 0; i < 20; i++) printf "{\"text\":\"%s\"}\n", line }' >"$T/same.jsonl"
meg-preprocess -q --input "$T/same.jsonl" --tokenizer-type NullTokenizer --vocab-size 100 --output-prefix "$T/same"
train_same() { train --data-path "$T/same_text_document" --eval-iters 0 "$@" >"$T/log"; }
train_same --seed 7 --save "$T/seed7"
train_same --seed 7 --save "$T/seed8" --exit-interval 5
cp -R "$T/seed8" "$T/anew"
train_same --seed 8 --save "$T/seed8" --load "$T/seed8"
train_same --seed 8 --save "$T/anew" --load "$T/anew" --no-load-rng
ok "dropout goes on with the checkpoint's seed, whatever --seed is" \
    same_tensors "$T/seed7/iter_0000010" "$T/seed8/iter_0000010"
isnt 'and with that of --seed after --no-load-rng' "$(cat "$T"/anew/iter_0000010/model-*.safetensors | cksum)" \
    "$(cat "$T"/seed7/iter_0000010/model-*.safetensors | cksum)"

# ---- momentum SGD ----
train_sgd() { train --optimizer sgd --lr 0.1 --eval-iters 0 "$@" >"$T/log"; }
train_sgd --save "$T/sgd"
train_sgd --save "$T/sgd5" --exit-interval 5
train_sgd --save "$T/sgd5" --load "$T/sgd5"
is 'momentum SGD: five and five' "$(grep -c ' consumed samples:' "$T/log")" 5
ok 'are the tensors of ten steps' same_tensors "$T/sgd/iter_0000010" "$T/sgd5/iter_0000010"
ok 'with the momentum' grep -qa momentum_buffer "$T"/sgd5/iter_0000010/optim-*.safetensors

# ---- over another run ----
before=$(cd "$T/halves" && ls -l)
for options in '--train-iters 7 --keep-last-n 1' "--load $T/whole --finetune" "--load $T/halves --finetune" \
    "--load $T/whole" --dry-run; do
    # shellcheck disable=SC2086
    status "to save over another run is refused: ${options#--load */}" 2 train --save "$T/halves" $options
    is 'before anything is trained' "$(wc -c <"$T/out" | tr -d ' ') $(cat "$T/err")" "0 meg-train: --save $T/halves: has \
checkpoints of another run, up to iteration 10; resume it with --load $T/halves, save to another folder, or give \
--overwrite-checkpoints"
done
is 'and nothing changes' "$(cd "$T/halves" && ls -l)" "$before"
status 'to evaluate is not' 0 train --save "$T/halves" --load "$T/whole" --skip-train
cp -R "$T/halves" "$T/over"
status '--overwrite-checkpoints saves over it' 0 train --save "$T/over" --overwrite-checkpoints --exit-interval 7
is 'from the first step, and its latest is the latest' \
    "$(grep -c ' consumed samples:' "$T/out") $(cat "$T/over/latest_checkpointed_iteration.txt")" '7 7'

# ---- TensorBoard ----
# Of iterations 6 to 8 a run was killed, and one resumed after 5 writes them again.
cp -R "$T/halves" "$T/board"
tb() { train --save "$T/board" --load "$T/board" --ckpt-step "$1" --tensorboard-dir "$T/tb" --exit-interval "$2"; }
tb 5 8 >"$T/log" 2>"$T/err"
sleep 1 # files are named after the second, and read in that order
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
is 'the event files hold each iteration once' "$(cat "$T"/tb/events* | tr '\n' ' ' | grep -ao 'learning-rate vs samples' | wc -l)" 5

# ---- without a tracker ----
mkdir "$T/lost"
cp -R "$T/whole/iter_0000005" "$T/lost"
meg-train --config "$T/conf" --save "$T/lost" --load "$T/lost" >"$T/log" 2>"$T/err"
is 'without a tracker: status' $? 0
like 'the newest iteration is taken and named' "$(cat "$T/err")" 'iteration 5 is the newest that is whole'
is 'and gone on from' "$(grep -c ' consumed samples:' "$T/log")" 5
same 'without a tracker' "$T/lost"

# ---- threads ----
OMP_NUM_THREADS=1 train --save "$T/one" >"$T/one.log"
OMP_NUM_THREADS=2 train --save "$T/two" >"$T/two.log"
for n in one two; do
    is "threads, $n: the same log" "$(steps <"$T/$n.log")" "$(steps <"$T/whole.log")"
done
same 'one thread' "$T/one"
same 'two threads' "$T/two"

# ---- a signal ----
# A shell has what it starts in the background ignore SIGINT.
with_sigint() { exec perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$@"; }
for sig in TERM USR1 INT HUP; do
    rm -rf "$T/sig"
    with_sigint meg-train -q --config "$T/conf" --save "$T/sig" --load "$T/sig" --train-iters 1000000 --lr-decay-iters 10 \
        >"$T/$sig.log" 2>/dev/null &
    pid=$!
    until_true 60 grep -q 'consumed samples' "$T/$sig.log"
    kill -"$sig" $pid
    wait $pid
    is "SIG$sig: status" $? 75
    last=$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/$sig.log" | tail -n 1)
    is "SIG$sig: the last step is saved" "$(cat "$T/sig/latest_checkpointed_iteration.txt")" "$last"
done
train --load "$T/sig" --save "$T/sig" --train-iters 1000000 --lr-decay-iters 10 --exit-interval $((last + 2)) >"$T/log"
is 'and goes on from there' "$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/log" | head -n 1)" $((last + 1))

# a hangup that the run was told to ignore
nohup meg-train -q --config "$T/conf" --save "$T/nohup" --train-iters 1000000 --lr-decay-iters 10 \
    >"$T/nohup.log" 2>/dev/null &
pid=$!
until_true 60 grep -q 'consumed samples' "$T/nohup.log"
kill -HUP $pid
seen=$(wc -l <"$T/nohup.log")
ok 'under nohup a run goes on after SIGHUP' until_true 60 sh -c "[ \$(wc -l <'$T/nohup.log') -gt $((seen + 10)) ]"
kill -TERM $pid
wait $pid
is 'and stops on SIGTERM' $? 75

# while it gets ready: opening its metrics waits for a reader
mkfifo "$T/pipe"
begin() { # DIR
    with_sigint meg-train -q --config "$T/conf" --save "$1" --log-json "$T/pipe" >/dev/null 2>&1 &
    pid=$!
    until_true 60 catches_usr1
}
# SIGUSR1, which the shell has no trap for: what it forks has its traps until the command begins.
catches_usr1() { [ $((0x$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "/proc/$pid/status") & 0x200)) -ne 0 ]; }
begin "$T/early"
kill -TERM $pid
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'a signal before the first step: status' $? 75
kill $reader 2>/dev/null
is 'that step is taken and saved' "$(cat "$T/early/latest_checkpointed_iteration.txt")" 1

# ---- data that are truncated while they are in use ----
cp "$T/ids_text_document.idx" "$T/cut.idx"
cp "$T/ids_text_document.bin" "$T/cut.bin"
cut_run() { meg-train -q --config "$T/conf" --data-path "$T/cut" --split 1,0,0 --train-iters 60 --lr-decay-iters 60 "$@"; }
cut_run --save "$T/uncut" >"$T/uncut.log" 2>"$T/err"
cut_run --save "$T/cutrun" --log-json "$T/pipe" >"$T/cut.log" 2>"$T/cut.err" &
pid=$!
until_true 60 catches_usr1
kept=$(($(wc -c <"$T/cut.bin") / 4096 * 4096))
truncate -s "$kept" "$T/cut.bin"
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'data truncated during the run: status' $? 74
kill $reader 2>/dev/null
last=$(sed -n 's/.* iteration *\([0-9]*\)\/.*/\1/p' "$T/cut.log" | tail -n 1)
like 'the file and what is saved are named' "$(cat "$T/cut.err")" "^meg-train: $T/cut.bin: byte [0-9]* cannot be read any \
more: the file was truncated, or its disk fails, while it was in use; iteration $last is saved in $T/cutrun\$"
is 'the last step is saved' "$(cat "$T/cutrun/latest_checkpointed_iteration.txt")" "$last"
cp "$T/ids_text_document.bin" "$T/cut.bin"
cut_run --save "$T/cutrun" --load "$T/cutrun" >"$T/log" 2>"$T/err"
ok 'with the whole file it resumes bit for bit' same_tensors "$T/uncut/iter_0000060" "$T/cutrun/iter_0000060"

# Signals that wait are one: the second is sent once the first is received, again until it is received as the second.
ends() { ! kill -"$1" $pid || grep -q '^State:.Z' "/proc/$pid/status"; } # the shell may have waited for it
received() { grep -q '^ShdPnd:[^0-9a-f]*0*$' "/proc/$pid/status"; }
for two in 'TERM TERM 143' 'USR1 USR1 138' 'INT INT 130' 'HUP TERM 143'; do
    # shellcheck disable=SC2086
    set -- $two
    begin "$T/sig2"
    ok "the lock is there before SIG$1" test -e "$T/sig2/.meg-lock"
    kill -"$1" $pid
    until_true 60 ends "$2"
    wait $pid 2>/dev/null
    is "SIG$2 after SIG$1 ends it at once" $? "$3"
    ok 'and removes the lock' test ! -e "$T/sig2/.meg-lock"
done
begin "$T/hup"
kill -HUP $pid
until_true 60 received
kill -HUP $pid
cat "$T/pipe" >/dev/null &
reader=$!
wait $pid
is 'SIGHUP after SIGHUP does not' $? 75
kill $reader 2>/dev/null

# ---- flags of loading ----
train --load "$T/whole" --finetune --train-iters 1 --lr-warmup-iters 0 --eval-iters 0 >"$T/log"
like 'fine-tuning begins at iteration 0' "$(cat "$T/log")" ' iteration        1/       1 \| consumed samples:            4 '
train --load "$T/whole" --ckpt-step 5 --no-load-optim --eval-iters 0 >"$T/log"
like 'without optimizer state the schedule begins anew' "$(cat "$T/log")" \
    ' iteration        6/      10 \| consumed samples:           24 \|.* learning rate: 5.000000E-03'
status 'another schedule is refused' 2 train --load "$T/whole" --ckpt-step 5 --lr 2e-2
like 'and named' "$(cat "$T/err")" '--lr 0.02, not 0.01'
like 'unless it is to be taken' \
    "$(train --load "$T/whole" --ckpt-step 5 --lr 2e-2 --override-opt_param-scheduler --eval-iters 0)" \
    ' iteration        6/.* learning rate: 1\.'
like "or the checkpoint's is" \
    "$(train --load "$T/whole" --ckpt-step 5 --lr 2e-2 --use-checkpoint-opt_param-scheduler --eval-iters 0)" \
    ' iteration        6/.* learning rate: 5\.'
status 'another shape is refused' 2 train --load "$T/whole" --num-layers 3 --hidden-size 48
like 'layers are named' "$(cat "$T/err")" '--num-layers'
like 'and the width' "$(cat "$T/err")" '--hidden-size'
status 'another number of heads is' 2 train --load "$T/whole" --num-attention-heads 4
sed '/num-layers\|hidden-size\|num-attention-heads\|seq-length\|max-position\|tokenizer\|vocab/d' "$T/conf" >"$T/bare.conf"
status 'the model can come from the checkpoint' 0 \
    meg-train -q --config "$T/bare.conf" --use-checkpoint-args --load "$T/whole" --skip-train

sed 's/^vocab-size.*/vocab-size = 127/' "$T/bare.conf" >"$T/hf.conf"
printf 'tokenizer-type = NullTokenizer\nvocab-size = 127\nseq-length = 16\n' >>"$T/hf.conf"
meg-train -q --config "$T/hf.conf" --load "$golden/models/gpt2-tiny" --save "$T/tuned" --eval-iters 0 >"$T/log"
is "a Hugging Face folder is trained from, its model's options taken" $? 0
like 'from iteration 0' "$(cat "$T/log")" '^.* iteration        1/      10 '
is 'and its width is kept' "$(jq -r '.options[] | select(startswith("hidden-size"))' "$T/tuned/iter_0000010/state.json")" \
    'hidden-size = 64'

train --save "$T/lean" --no-save-optim --no-save-rng --exit-interval 5 >/dev/null
is 'a checkpoint without optimizer state' "$(ls "$T/lean/iter_0000005" | grep -c '^optim')" 0
status 'does not load as a whole' 65 train --load "$T/lean"
like 'and says what would' "$(cat "$T/err")" '--no-load-'
status 'loads without' 0 train --load "$T/lean" --no-load-optim --no-load-rng

train --save "$T/kept" --save-interval 2 --keep-last-n 2 >/dev/null
is 'only the newest are kept' "$(ls "$T/kept" | grep iter_ | tr '\n' ' ')" 'iter_0000008 iter_0000010 '

# ---- a damaged checkpoint ----
cp -R "$T/whole" "$T/bad"
printf x | dd of="$(ls "$T"/bad/iter_0000010/model-*.safetensors | tail -n 1)" bs=1 seek=5000 conv=notrunc 2>/dev/null
status 'a flipped byte is found' 65 train --load "$T/bad"

# ---- a save that fails, and one that is killed ----
fault=${B:-build}/tests/fault.so
if [ -f "$fault" ]; then
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
    export ASAN_OPTIONS
    full() { # ITERATION OPTION...: the disk is full when that one is saved
        in=$1
        shift
        rm -rf "$T/full"
        LD_PRELOAD=fault.so MEG_FAULT_IN="iter_$in" MEG_FAULT_AT=2 MEG_FAULT_ERRNO=ENOSPC \
            meg-train -q --config "$T/conf" --save "$T/full" "$@" >"$T/full.log" 2>"$T/err"
    }
    for async in '' --async-save; do
        # shellcheck disable=SC2086
        full 0000004 --save-interval 2 $async
        is "a save that fails does not end the run${async:+, $async}" \
            "$? $(ls "$T/full" | grep iter_ | tr '\n' ' ')" '0 iter_0000002 iter_0000006 iter_0000008 iter_0000010 '
        like 'which a warning says' "$(cat "$T/err")" "^meg-train: $T/full/.*: No space left on device; \
iteration 4 is not saved, and the run goes on until the next save, after iteration $([ "$async" ] && echo '[0-9]*' || echo 6)\$"
        same "and it loses nothing" "$T/full"
        # shellcheck disable=SC2086
        full 0000004 --save-interval 2 --exit-on-save-failure $async
        is '--exit-on-save-failure ends it' "$? $(ls "$T/full" | tr '\n' ' ')" \
            '74 iter_0000002 latest_checkpointed_iteration.txt '
        # shellcheck disable=SC2086
        full 0000010 --save-interval 5 $async
        is 'so does the last save' "$? $(ls "$T/full" | tr '\n' ' ')" '74 iter_0000005 latest_checkpointed_iteration.txt '
        like 'with an error' "$(cat "$T/err")" "^meg-train: $T/full/.*: No space left on device\$"
        # shellcheck disable=SC2086
        full 0000006 --save-interval 2 --exit-interval 6 $async
        is 'and that before an exit' "$? $(cat "$T/full/latest_checkpointed_iteration.txt")" '74 4'
    done
    five() { rm -rf "$T/killed"; train --save "$T/killed" --exit-interval 5 >/dev/null; }
    sixth() { LD_PRELOAD=fault.so meg-train -q --config "$T/conf" --save "$T/killed" --load "$T/killed" --exit-interval 6; }
    five
    MEG_FAULT_COUNT="$T/count" sixth >/dev/null
    n=$(cat "$T/count")
    ok "a save writes ($n calls)" test "$n" -gt 20
    # the first, some in between, and the last calls of the save
    for at in 1 2 $((n / 4)) $((n / 2)) $((n - 2)) $((n - 1)) "$n"; do
        five
        MEG_FAULT_AT=$at MEG_FAULT_ERRNO=KILL sixth >/dev/null 2>&1
        is "killed at write $at of $n" $? 137
        train --save "$T/killed" --load "$T/killed" >/dev/null
        same "and resumed" "$T/killed"
    done
else
    skip 'killed while it saves' "no $fault"
fi
done_testing
