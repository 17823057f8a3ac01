#!/bin/sh
# modules: train
# meg-train: logs and metrics, exit conditions, and errors.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

# ---- log, metrics, TensorBoard ----
ok 'ten steps succeed' sh -c '"$@" >"$0"' "$T/log" meg-train -q --config "$T/conf" --log-json "$T/m.jsonl" \
    --tensorboard-dir "$T/tb" --log-throughput --log-params-norm --log-num-zeros-in-grad --decoupled-lr 5e-3
line='^ \[[-0-9]{10} [:0-9]{8}\] iteration        3/      10 \| consumed samples:           12 \|'
line="$line elapsed time per iteration \(ms\): [0-9.]+ \| throughput per GPU \(TFLOP/s/GPU\): [0-9.]+ \|"
line="$line learning rate: [0-9.]+E-03 \| decoupled learning rate: [0-9.]+E-03 \| global batch size:     4 \|"
line="$line lm loss: [0-9.]+E\+00 \| loss scale: 1.0 \| grad norm: [0-9.]+ \| num zeros: [0-9]+ \|"
line="$line params norm: [0-9.]+ \| number of skipped iterations:   0 \| number of nan iterations:   0 \|$"
like 'a log line has the format of Megatron' "$(cat "$T/log")" "$line"
is 'each iteration has a line' "$(grep -c ' iteration .*/' "$T/log")" 10
for where in 'iteration 0' 'iteration 4' 'iteration 8' 'iteration 10 on validation set' 'iteration 10 on test set'; do
    like "there is an evaluation at $where" "$(cat "$T/log")" \
        "^ validation loss at $where \| lm loss value: [0-9.]+E\+00 \| lm loss PPL: [0-9.E+]+ \| $"
done
is 'there is a JSON line per log line and evaluation' "$(jq -s 'length' "$T/m.jsonl")" 15
is 'metrics agree with the log' "$(jq -r 'select(.iteration == 3) | .consumed_samples' "$T/m.jsonl")" 12
is 'evaluations have iteration and split' "$(jq -r 'select(.split) | "\(.iteration) \(.split)"' "$T/m.jsonl" | tr '\n' ',')" \
    '0 valid,4 valid,8 valid,10 valid,10 test,'
for tag in 'lm loss' 'lm loss vs samples' learning-rate batch-size grad-norm num-zeros params-norm iteration-time \
    throughput 'lm loss validation' hidden-size/text_summary; do
    ok "TensorBoard events have $tag" grep -qaF "$tag" "$T"/tb/events.out.tfevents.*
done

# The FLOP per token are 6 times the multiply-adds: 2 layers of 4 h^2 (attention) + 2 s h (scores, values) + 8 h^2
# (MLP), and h V (output layer).
is 'FLOP follow the formula' "$(jq -r 'select(.iteration == 3 and .lm_loss and (.split | not)) |
    "\(.flops_per_iteration) \(.tflops_per_s * .iteration_ms * 1e9 / .flops_per_iteration * 1e6 | round)"' "$T/m.jsonl")" \
    "$((6 * 4 * 16 * (2 * (4 * 32 * 32 + 2 * 16 * 32 + 8 * 32 * 32) + 32 * 101))) 1000000"
ok 'TensorBoard events have no perplexity by default' sh -c '! grep -qa "validation ppl" "$@"' - "$T"/tb/events.out.tfevents.*
train --train-iters 6 --eval-interval 3 --tensorboard-dir "$T/tb3" --tensorboard-log-interval 3 \
    --log-validation-ppl-to-tensorboard >"$T/log"
tags() { grep -aoF "$1" "$T"/tb3/events.out.tfevents.* | grep -c .; }
is '--tensorboard-log-interval and --log-validation-ppl-to-tensorboard select the events' \
    "$(tags 'learning-rate vs samples') $(tags 'lm loss validation ppl vs samples')" '2 4'

# ---- --check-for-spiky-loss ----
train --train-iters 8 --lr 0.3 --lr-warmup-iters 0 --lr-decay-style constant --eval-iters 0 --check-for-spiky-loss \
    >"$T/log" 2>"$T/err"
is '--check-for-spiky-loss warns of each loss that changes by a fifth' "$(sed -n 's/^meg-train: iteration \([0-9]*\): lm loss changed .*/\1/p' "$T/err")" \
    "$(sed -n 's/.* lm loss: \([^ ]*\) .*/\1/p' "$T/log" |
        awk 'NR > 1 && ($1 - last >= last / 5 || last - $1 >= last / 5) { print NR } { last = $1 }')"
ok 'some loss changes by a fifth' test -s "$T/err"
train --train-iters 8 --lr 0.3 --lr-warmup-iters 0 --lr-decay-style constant --eval-iters 0 >"$T/log" 2>"$T/err"
is 'a spiky loss causes no warning by default' "$(cat "$T/err")" ''

train --train-iters 200 --eval-interval 200 --log-interval 200 >"$T/log"
is 'the validation loss falls' "$(sed -n 's/.*lm loss value: \([0-9.]*E+00\) .*/\1/p' "$T/log" |
    awk '{ v[NR] = $1 } END { print NR, v[2] < v[1] - 1 }')" '4 1'

# ---- micro-batches ----
last_loss() { train --log-interval 5 --train-iters 5 --eval-iters 0 "$@" | sed -n 's/.* lm loss: \([^ ]*\) .*/\1/p'; }
# alike A B: print 1 if two losses are equal up to rounding, else 0
alike() {
    echo "$1" >"$T/a"
    echo "$2" >"$T/b"
    near "$T/a" "$T/a" 0 && near "$T/b" "$T/b" 0 || return
    near "$T/a" "$T/b" 2e-6 >"$T/far" && echo 1 || echo 0
}
is 'the loss does not depend on the micro-batch size, dropout included' \
    "$(alike "$(last_loss --micro-batch-size 1)" "$(last_loss --micro-batch-size 4)")" 1
is 'each micro-batch has the same weight, whatever its masked tokens' "$(alike "$(last_loss --eod-mask-loss --micro-batch-size 1)" \
    "$(last_loss --eod-mask-loss --micro-batch-size 4)")" 0
is 'with --calculate-per-token-loss each token has the same weight' "$(alike "$(last_loss --eod-mask-loss --micro-batch-size 1 --calculate-per-token-loss)" \
    "$(last_loss --eod-mask-loss --micro-batch-size 4 --calculate-per-token-loss)")" 1
is 'both weightings are equal for one micro-batch' "$(alike "$(last_loss --eod-mask-loss --micro-batch-size 4)" \
    "$(last_loss --eod-mask-loss --micro-batch-size 4 --calculate-per-token-loss)")" 1

# ---- dry run ----
mkdir "$T/dry"
train --dry-run --save "$T/dry/save" --save-interval 4 --log-json "$T/dry/m" --tensorboard-dir "$T/dry/tb" \
    --data-cache-path "$T/dry/cache" >"$T/plan"
is 'a dry run succeeds' $? 0
is 'a dry run writes nothing' "$(ls "$T/dry")" ''
like 'a dry run prints parameters' "$(cat "$T/plan")" '^  all +28 +29216$'
like 'a dry run prints memory' "$(cat "$T/plan")" '^  optimizer state +0\.[0-9]$'
like 'a dry run prints work' "$(cat "$T/plan")" '^  the run +1\.15e\+08 +640$'
like 'a dry run prints samples and epochs' "$(cat "$T/plan")" '^  train +1.0000 +108 +3967 +40 +247 +1  .*/ids_text_document$'
like 'a dry run prints checkpoints' "$(cat "$T/plan")" '^  at iterations +4 8 10$'

# The planned memory is within 5 percent of the memory that a run with one thread uses.  The plan does not include the
# per-thread workspace of matrix products, which would matter in a model of this size (memory.t tests a larger model
# with all threads).
set -- --num-layers 6 --hidden-size 384 --num-attention-heads 8 --micro-batch-size 64 --global-batch-size 64 \
    --eval-iters 0 --train-iters 1 --lr-warmup-iters 0
planned=$(train --dry-run "$@" | awk '/^memory/ { seen = 1 } seen && $1 == "all" { print $2; exit }')
used=$(OMP_NUM_THREADS=1 meg-train -v --config "$T/conf" "$@" 2>&1 >/dev/null | sed -n 's/.*memory: peak \([0-9.]*\) MiB.*/\1/p')
if nm "$(command -v meg-train)" 2>/dev/null | grep -q __asan_init; then
    skip 'memory is as planned' 'a sanitizer uses memory of its own'
else
    is "memory is as planned: $planned, used: $used" "$(awk "BEGIN { print ($used < $planned * 1.05 && $used > $planned * 0.95) }")" 1
fi

# ---- exit conditions ----
is '--exit-interval ends the run' "$(train --exit-interval 3 | grep -c ' consumed samples:')" 3
status '--exit-interval ends with 0' 0 train --exit-interval 3
is '--exit-duration-in-mins ends the run' "$(train --exit-duration-in-mins 0.0000001 | grep -c ' consumed samples:')" 1
is '--skip-train evaluates without training' "$(train --skip-train | grep -c 'validation loss')" 2
is '--eval-iters 0 does not evaluate' "$(train --eval-iters 0 | grep -c ' iteration ')" 10

# ---- --train-samples, batch size ramp-up ----
sed '/train-iters\|lr-warmup-iters/d' "$T/conf" >"$T/samples.conf"
meg-train -q --config "$T/samples.conf" --train-samples 41 --lr-warmup-samples 8 --rampup-batch-size 2 2 12 \
    --global-batch-size 6 --eval-iters 0 --save "$T/ramp" >"$T/log"
is 'the global batch grows' "$(sed 's/.*consumed samples: *\([0-9]*\) .*batch size: *\([0-9]*\) .*/\1:\2/' "$T/log" | tr '\n' ' ')" \
    '2:2 4:2 6:2 10:4 14:4 20:6 26:6 32:6 38:6 '
is 'a checkpoint is saved at the end of each size' "$(ls "$T/ramp" | grep iter_ | tr '\n' ' ')" 'iter_0000003 iter_0000005 iter_0000009 '
fives() {
    train --global-batch-size 5 --decrease-batch-size-if-needed --train-iters 4 --lr-warmup-iters 0 --eval-iters 0 \
        --save "$T/fives" --load "$T/fives" "$@" 2>&1
}
like 'a batch that is rounded down skips samples' "$(fives --exit-interval 2)" \
    'consumed samples: +8 \| skipped samples: +2 \|'
like 'a resumed run continues to count skipped samples' "$(fives)" 'consumed samples: +16 \| skipped samples: +4 \|'

# ---- progress.txt ----
train --save "$T/prog" --save-interval 5 --log-progress >/dev/null
train --save "$T/prog" --load "$T/prog" --log-progress >/dev/null
is 'each start and checkpoint has a line' "$(cut -f 3-5 "$T/prog/progress.txt" | tr '\t' ' ')" '# GPUs: 1 Starting job
# GPUs: 1 Saved checkpoint Iteration: 5
# GPUs: 1 Saved checkpoint Iteration: 10
# GPUs: 1 Starting job'
like 'checkpoints have throughput and FLOP' "$(cat "$T/prog/progress.txt")" \
    'Iteration: 5.*Job throughput: [0-9.]+ TFLOP/s/GPU.*Cumulative throughput: [0-9.]+ TFLOP/s/GPU.*Floating-point operations: 5\.[0-9]+e\+07.*Tokens \(in billions\): 0\.00$'

# ---- usage errors: status 2, one line ----
refuses() { # NAME REGEX OPTION...
    name=$1 regex=$2
    shift 2
    status "$name ends with 2" 2 train "$@"
    like "$name: the message states the error" "$(head -n 1 "$T/err")" "$regex"
}
refuses 'an unknown option' 'unknown option --learning-rate' --learning-rate 1
refuses 'an invalid number' "--lr: '1e' is not a finite number" --lr 1e
status '--device cuda without a GPU fails' "$(no_gpu_status)" train --device cuda
refuses 'a former option name' '--batch-size: now called --micro-batch-size' --batch-size 4
refuses 'another former option name' '--model-parallel-size: now called --tensor-model-parallel-size' --model-parallel-size 1
refuses 'a feature that is not supported' '--moe_router_topk: not supported yet: mixture of experts; see NOT YET in meg\(7\)' --moe_router_topk 2
refuses 'several unknown options' '--fp8-format: not supported yet: fp8 and fp4' --fp8-format hybrid --bogus=8 --profile --lr 1
is 'all unknown options are reported at once' "$(cat "$T/err")" "\
meg-train: --fp8-format: not supported yet: fp8 and fp4; see NOT YET in meg(7)
meg-train: unknown option --bogus
meg-train: --profile: not supported yet: profilers; see NOT YET in meg(7)
Try 'meg-train --help'."
printf 'lr = 1\nfp8_format = hybrid\n' >"$T/fp8.conf"
refuses 'an unknown option in a file' 'fp8.conf: line 2: --fp8_format: not supported yet: fp8 and fp4' --config "$T/fp8.conf"
for size in tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size; do
    refuses "--$size 2" "--$size 2: must be at most 1, the number of ranks" "--$size" 2
done
refuses 'a batch that micro-batches do not divide' '--global-batch-size 3: must be a multiple of 2' --global-batch-size 3
refuses 'a warm-up longer than the decay' 'the warm-up has 80 samples, but must be shorter than the decay' --lr-warmup-iters 20
refuses '--lr-warmup-samples with --train-iters' '--lr-warmup-samples 5: requires --train-samples' --lr-warmup-samples 5
refuses 'more than 2^53 samples' '--train-iters 9000000000000000000: corresponds to 3.6e.19 samples' \
    --train-iters 9000000000000000000
refuses 'more than 2^53 samples of evaluations' '--eval-iters 9000000000000000: corresponds to' --eval-iters 9000000000000000
refuses 'more than 2^53 samples of the schedule' '--lr-decay-iters 9000000000000000: must correspond to at most 2\^53 samples' --lr-decay-iters 9000000000000000
refuses 'a batch of billions' '--micro-batch-size 4000000000: must be at most 2147483647' --micro-batch-size 4000000000
refuses 'a micro-batch of billions of tokens' '--micro-batch-size 200000000: the product with --seq-length 16 must be at most' \
    --micro-batch-size 200000000 --global-batch-size 200000000
refuses '--train-samples with --train-iters' '--train-samples 100: cannot be combined with --train-iters' --train-samples 100
refuses '--rampup-batch-size with --train-iters' '--rampup-batch-size' --rampup-batch-size 2 2 12
refuses 'a minimum learning rate above the maximum' '--min-lr 1: must not be above --lr' --min-lr 1
refuses 'seed 0' '--seed 0: must be at least 1' --seed 0
refuses 'a sequence longer than the position table' '--max-position-embeddings 16: must be at least --seq-length 32' --seq-length 32
refuses 'heads that do not divide the hidden size' '--hidden-size' --num-attention-heads 3
refuses '--ckpt-step without --load' '--ckpt-step 3: requires --load' --ckpt-step 3
refuses 'WSD without its decay length' '--lr-decay-style WSD: requires' --lr-decay-style WSD
refuses 'both schedule options' '--override-opt_param-scheduler' --override-opt_param-scheduler \
    --use-checkpoint-opt_param-scheduler
status 'a missing checkpoint with --exit-on-missing-checkpoint ends with 66' 66 train --load "$T/none" --exit-on-missing-checkpoint
status 'a missing dataset ends with 66' 66 train --data-path "$T/none"
status 'a dataset without the suffix of its key ends with 66' 66 train --data-path "$T/ids"
like 'the message suggests the name of the dataset' "$(cat "$T/err")" '/ids\.idx: no such file; did you mean .*/ids_text_document\?$'
status 'a text file as dataset ends with 66' 66 train --data-path "$T/ids.jsonl"
like 'the message says how to make a dataset' "$(cat "$T/err")" '/ids\.jsonl is not a dataset; convert text to a dataset with meg-preprocess\(1\)'
status 'a missing weight in a blend ends with 66' 66 train --data-path 0.3 "$T/ids_text_document" "$T/ids_text_document"
like 'the message says which of the two is missing' "$(cat "$T/err")" '0\.3\.idx: no such file; if 0.3 is a weight, specify a weight before every dataset'
: >"$T/afile"
status '--save below a file ends with 74' 74 train --save "$T/afile/run"
is 'the message comes before the first step' "$(wc -c <"$T/out" | tr -d ' ') $(cat "$T/err")" \
    "0 meg-train: $T/afile: exists and is not a directory"
refuses 'a negative split' "--split: '90,-8,2' has a minus sign" --split 90,-8,2
awk 'BEGIN { for (i = 0; i < 32767; i++) print "p" i }' >"$T/many"
grep -v data-path "$T/conf" >"$T/nodata"
status 'more datasets than a blend index counts end with 2' 2 meg-train -q --config "$T/nodata" --data-args-path "$T/many"
like 'more datasets than a blend index counts: the message has both numbers' "$(cat "$T/err")" 'many: found 32767 datasets, expected at most 32766'
refuses 'a split that rounds to no documents' '--split' --split 9999,1,0
for split in 0,100,0 0,0,100; do
    refuses "--split $split" "--split $split: leaves no documents for training; increase the first number" --split "$split"
    refuses "--split $split --dry-run" "--split $split: leaves no documents for training; increase the first number" \
        --split "$split" --dry-run
    status "--split $split with --skip-train ends with 0" 0 train --split "$split" --skip-train
    is "--split $split with --skip-train is evaluated" "$(grep -c 'validation loss' "$T/out")" 1
done
grep -v '^data-path\|^split' "$T/conf" >"$T/nodata"
status 'only validation data ends with 2' 2 meg-train -q --config "$T/nodata" --valid-data-path "$T/ids_text_document"
like 'only validation data: the message says what to do' "$(cat "$T/err")" '^meg-train: no training data: specify the datasets of the training split'
status 'only validation data with --skip-train ends with 0' 0 meg-train -q --config "$T/nodata" --valid-data-path "$T/ids_text_document" --skip-train
like 'an ignored option causes a warning' "$(train --manual-gc --train-iters 3 --eval-iters 0 2>&1 >/dev/null)" '^meg-train: these options have no effect, for reasons that --help lists: --manual-gc$'
status 'parallel sizes of 1 are accepted' 0 train --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --context-parallel-size 1 --dry-run
like 'ignored options are named in one warning' "$(train --distributed-backend nccl \
    --no-async-tensor-model-parallel-allreduce --wandb-project p --wandb-exp-name e --wandb-save-dir d \
    --timing-log-level 1 --timing-log-option minmax --make-vocab-size-divisible-by 128 --pad-vocab-size-to 50304 --dry-run 2>&1 >/dev/null |
    grep 'no effect' | grep -o ' --' | wc -l | tr -d ' ')" '^10$'
status 'the value of an ignored option is checked' 2 train --transformer-impl lokal

# ---- corrupt or missing input ----
head -c 100 "$T/ids_text_document.bin" >"$T/cut.bin"
cp "$T/ids_text_document.idx" "$T/cut.idx"
status 'a truncated dataset ends with 65' 65 train --data-path "$T/cut"
status 'ids outside of the vocabulary end with 65' 65 train --vocab-size 50
echo 'other text' >"$T/mine.txt"
status 'a --log-json file of another program ends with 65' 65 train --log-json "$T/mine.txt"
is 'the file is unchanged' "$(cat "$T/mine.txt")" 'other text'

status 'a full disk for --log-json does not end the run' 0 train --log-json /dev/full
is 'a full disk for --log-json causes one warning' "$(cat "$T/err")" \
    'meg-train: /dev/full: No space left on device; the run continues without --log-json'
is 'a full disk for --log-json does not skip steps' "$(grep -c ' consumed samples:' "$T/out")" 10
fault=$B/tests/fault.so
if [ -f "$fault" ]; then
    # fails AT TEXT OPTION...: run; call number AT on a file whose name contains TEXT fails
    fails() {
        at=$1 in=$2
        shift 2
        status "the run survives that call $at on $in fails" 0 env ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0" \
            LD_PRELOAD=fault.so MEG_FAULT_IN="$in" MEG_FAULT_AT="$at" MEG_FAULT_ERRNO=ENOSPC \
            meg-train -q --config "$T/conf" "$@"
    }
    fails 5 full.jsonl --log-json "$T/full.jsonl" --save "$T/full"
    is 'the metrics end at the failed write with a complete line' "$(jq -r .iteration "$T/full.jsonl" | xargs)" '0 1 2'
    is 'the run reaches its end' "$(cat "$T/full/latest_checkpointed_iteration.txt")" 10
    train --tensorboard-dir "$T/alltb" >/dev/null
    fails $(($(grep -ao text_summary "$T"/alltb/* | wc -l) + 30)) tfevents --tensorboard-dir "$T/fulltb"
    like 'the events end at the failed write with a warning' "$(cat "$T/err")" \
        "^meg-train: $T/fulltb/events.*: No space left on device; the run continues without --tensorboard-dir\$"
    is 'the run has all its steps' "$(grep -c ' consumed samples:' "$T/out")" 10
    fails 3 progress.txt --log-progress --save "$T/fullprog" --save-interval 5
    like 'progress.txt lacks a line, with a warning' "$(cat "$T/err")" \
        '^meg-train: .*/progress.txt: No space left on device; no line was appended for iteration [0-9]+,'
else
    skip 'writes that fail' "no $fault"
fi
status 'a checkpoint above the limit of file size ends with 74' 74 sh -c 'ulimit -f 16; exec "$@"' - \
    meg-train -q --config "$T/conf" --save "$T/limit" --exit-interval 1
like 'the message has the name of the file' "$(cat "$T/err")" '^meg-train: .*/limit/.*: File too large$'
status 'a full disk for stdout ends with 74' 74 sh -c 'exec "$@" >/dev/full' - meg-train -q --config "$T/conf"
is '--log-json writes to a pipe' "$(train --log-json /dev/stderr 2>&1 >/dev/null | jq -s length)" 15

# ---- NaN and Inf ----
status 'a loss that diverges ends with 1' 1 train --lr 1e30 --clip-grad 0 --lr-warmup-iters 0 --eval-iters 0
like 'the message has iteration and parameter' "$(cat "$T/err")" 'iteration [0-9]+: .*the gradient of [a-z_.0-9]+ is not finite; this iteration is discarded'
status '--no-check-for-nan-in-loss-and-grad continues' 0 train --lr 1e30 --clip-grad 0 --lr-warmup-iters 0 --eval-iters 0 \
    --no-check-for-nan-in-loss-and-grad --save "$T/nan"
evaluates_nan() { train --load "$T/nan" --skip-train --override-opt_param-scheduler --log-json "$T/nan.jsonl" "$@"; }
status 'a validation loss that is NaN ends with 1' 1 evaluates_nan
like 'the message names the split' "$(cat "$T/err")" '^meg-train: iteration 10: the lm loss of the valid split is nan; check the weights'
like 'the logged perplexity is NaN' "$(cat "$T/out")" 'lm loss value: -?NAN \| lm loss PPL: NAN \| $'
is 'the metrics have null for NaN' "$(jq -c '[.split, .lm_loss, .ppl]' "$T/nan.jsonl")" '["valid",null,null]'
status '--on-nan skip continues' 0 evaluates_nan --on-nan skip
is '--on-nan skip: the test split is evaluated' "$(jq -c '[.split, .lm_loss, .ppl]' "$T/nan.jsonl" | tail -n 1)" '["test",null,null]'
status '--no-check-for-nan-in-loss-and-grad continues after validation' 0 evaluates_nan --no-check-for-nan-in-loss-and-grad
done_testing
