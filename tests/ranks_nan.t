#!/bin/sh
# needs: ranks/comm queue/bin
# modules: train
# A loss or gradient that is not finite is reported with rank, iteration and tensor; --on-nan ends, skips or rolls back.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_llama >"$T/conf"
cat >>"$T/conf" <<'EOF'
train-iters = 12
lr-decay-style = constant
split = 1,0,0
EOF
cd "$T" || exit 1
# Token 49 occurs in one document of a hundred; its word embedding has a NaN.
awk 'BEGIN { for (i = 0; i < 100; i++) { s = ""; for (k = 0; k < 9; k++) s = s " " (i == 11 && k == 4 ? 49 : (i * 7 + k * 3) % 40)
             print "{\"text\":\"" substr(s, 2) "\"}" } }' >text
meg-preprocess -q --input text --tokenizer-type NullTokenizer --vocab-size 50 --output-prefix ids
meg-train -q --config conf --data-path ids_text_document --train-iters 1 --save one >out 2>&1
meg-convert -q --load-dir one --save-dir hf --saver hf >out 2>&1
header=$(od -An -t u8 -N 8 hf/model.safetensors | tr -d ' ')
row=$(head -c $((header + 8)) hf/model.safetensors | sed 's/.*embed_tokens.weight":{[^}]*data_offsets":\[\([0-9]*\).*/\1/')
printf '\000\000\300\177' |
    dd of=hf/model.safetensors bs=1 seek=$((8 + header + row + 49 * 64)) conv=notrunc 2>"$T/err"

# train RANKS OPTIONS...: train, and write iteration, skipped and NaN counts of each log line to $T/log
train() {
    train_n=$1
    shift
    ranks "$train_n" meg-train -q --config conf --data-path ids_text_document --load hf --finetune "$@" >out 2>err
    train_status=$?
    sed 's/.*iteration *\([0-9]*\)\/.*skipped iterations: *\([0-9]*\) .*nan iterations: *\([0-9]*\) .*/\1 \2 \3/' out >log
}

train 1
is 'a NaN ends the run' "$train_status" 1
bad=$(sed -n 's/^meg-train: iteration \([0-9]*\): lm loss is nan, and the gradient of output_layer.weight is not.*/\1/p' err)
isnt 'the message names iteration and tensor' "$bad" ''
is 'the last iteration logged is the one before' "$(tail -n 1 log)" "$((bad - 1)) 0 0"

named=
for n in 2 3; do
    train "$n" --save "ends$n"
    like "$n ranks: the rank that computed it is named" "$(cat err)" \
        "^meg-train.*: rank [0-9] of $n on $(hostname): iteration $bad: lm loss is nan"
    is "$n ranks: the NaN is reported once" "$(grep -c 'lm loss is nan' err)" 1
    ok "$n ranks: the lock of --save is removed" test -d "ends$n" -a ! -e "ends$n/.meg-lock"
    named="$named $(sed -n 's/^meg-train.*: rank \([0-9]\) of.*/\1/p' err)"
done
isnt 'the named rank is not always rank 0' "$named" ' 0 0'

train 2 --on-nan skip --save skip
is '--on-nan skip: the run completes' "$train_status $(tail -n 1 log)" '0 12 0 0'
is 'the skipped iteration is counted' "$(grep ' 1 1$' log)" "$bad 1 1"
is 'the optimizer makes one step less' "$(jq .run.optimizer.step skip/iter_0000012/state.json)" 11
like 'a warning is printed' "$(cat err)" "iteration $bad: .*; the iteration is skipped"
train 1 --on-nan skip --save skip1
ok 'one rank skips the iteration, too' test "$(jq .run.optimizer.step skip1/iter_0000012/state.json)" = 11

train 2 --on-nan rollback --save back --save-interval 3
is '--on-nan rollback: the run completes' "$train_status $(tail -n 1 log)" '0 12 0 0'
is 'the optimizer has one step less per iteration rolled back' "$(jq .run.optimizer.step back/iter_0000012/state.json)" \
    $((12 - bad + (bad - 1) / 3 * 3))
train 2 --on-nan rollback --save none
is 'rollback without a checkpoint ends the run' "$train_status" 1
like 'the message names the missing checkpoint' "$(cat err)" '--on-nan rollback: there is no checkpoint in none yet'

# on_queue RANKS ACTION DIR OPTION...: a run on the queue device (queue.t), where the host reads the result of a step after
# the next step is queued, saves the tensors of DIR
on_queue() {
    if ! is_openmpi; then
        skip "queue device: $2 of $1 ranks" 'MPICH accesses the memory of other ranks'
        return
    fi
    queue_n=$1 queue_action=$2 queue_dir=$3
    shift 3
    PATH="$B/tests/queue/bin:$PATH" MEG_QUEUE_SEED=$$ OMPI_MCA_btl_vader_single_copy_mechanism=none \
        train "$queue_n" --on-nan "$queue_action" --save "queue_$queue_dir" "$@"
    is "queue device: $queue_action of $queue_n ranks completes" "$train_status $(tail -n 1 log)" '0 12 0 0'
    is "queue device: $queue_action of $queue_n ranks: the same iterations are skipped" "$(grep ' 1 1$' log)" "$bad 1 1"
    like "queue device: $queue_action of $queue_n ranks warns" "$(cat err)" "iteration $bad: .*; the iteration is skipped"
    ok "queue device: $queue_action of $queue_n ranks saves the same tensors" \
        same_tensors "queue_$queue_dir/iter_0000012" "$queue_dir/iter_0000012"
}
on_queue 1 skip skip1
on_queue 2 skip skip
on_queue 2 rollback back --save-interval 3

train 1 --on-nan skip --train-iters 250
is '--on-nan skip: the run completes with a NaN in every epoch' "$train_status $(tail -n 1 log)" '0 250 0 0'
ok '--on-nan skip: more than ten iterations are skipped in total' test "$(grep -c ' 1 1$' log)" -gt 10
train 1 --lr 1e30 --clip-grad 0 --on-nan skip --train-iters 30
is '--on-nan skip: a limit ends the run' "$train_status" 1
like '--on-nan skip: the limit is ten consecutive iterations' "$(cat err)" 'this is the 10th such iteration in a row, the limit of --on-nan skip'
status '--on-nan rollback requires --save' 2 meg-train --config conf --on-nan rollback
like 'the message names --save' "$(cat "$T/err")" '--on-nan rollback: requires --save DIR'
status '--on-nan skip requires --check-for-nan-in-loss-and-grad' 2 meg-train --config conf --on-nan skip \
    --no-check-for-nan-in-loss-and-grad
like 'the message names the contradiction' "$(cat "$T/err")" '--on-nan skip: contradicts --no-check-for-nan-in-loss-and-grad'
done_testing
