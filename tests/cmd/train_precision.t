#!/bin/sh
# modules: optim
# meg-train in bf16 and fp16: losses close to fp32, the loss scale, skipped iterations, resuming, and memory.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

loss() { sed -n 's/.* lm loss: \([^ ]*\) .*/\1/p'; }

# ---- losses ----
train --train-iters 200 --eval-iters 0 | loss >"$T/f32"
is 'fp32 has 200 losses' "$(wc -l <"$T/f32" | tr -d ' ')" 200
while read -r options; do
    train --train-iters 200 --eval-iters 0 $options | loss >"$T/half_losses"
    ok "$options: losses are within 2% of fp32" near "$T/half_losses" "$T/f32" 0.02
    ok "$options: losses are not those of fp32" test "$(cat "$T/half_losses")" != "$(cat "$T/f32")"
done <<end
--bf16
--bf16 --fp32-residual-connection --loss-scale 64
--fp16 --initial-loss-scale 32768
--fp16 --fp32-residual-connection --accumulate-allreduce-grads-in-fp32 --loss-scale 1024
end

# ---- dynamic loss scale ----
# Compute the expected loss scale of each iteration from the skipped iterations.
expected='{ for (i = 1; i <= NF; i++) { if ($i == "scale:") s = $(i + 1); if ($i == "skipped") k = $(i + 2) }
    if (k) { good = 0; if (--left <= 0) scale = scale / 2 < min ? min : scale / 2 }
    else if (++good == window) { good = 0; left = hysteresis; scale *= 2 }
    if (s != sprintf("%.1f", scale)) wrong = wrong " " NR ":" s; skipped += k
    if (k && /lm loss|grad norm/) wrong = wrong " " NR ":logged" }
    END { print skipped (wrong ? " wrong:" wrong : "") }'
scales() { # SCALE MIN WINDOW HYSTERESIS
    awk -v scale="$1" -v min="$2" -v window="$3" -v left="$4" -v hysteresis="$4" "$expected"
}
train --fp16 --train-iters 60 --eval-iters 0 >"$T/log"
like 'the scale starts at 2^32 and halves from the second overflow on' "$(scales 4294967296 1 1000 2 <"$T/log")" '^1[5-9]$'
train --fp16 --train-iters 60 --eval-iters 0 --initial-loss-scale 1048576 --loss-scale-window 3 --hysteresis 3 >"$T/log"
like 'the scale doubles after a window' "$(scales 1048576 1 3 3 <"$T/log")" '^[1-9][0-9]?$'
train --fp16 --train-iters 12 --eval-iters 0 --initial-loss-scale 1e12 --min-loss-scale 1e12 >"$T/log" 2>"$T/err"
is 'the scale stays above --min-loss-scale, and ten consecutive overflows there end the run' \
    "$? $(scales 1000000000000 1000000000000 1000 2 <"$T/log")" '1 9'
like 'the message says so' "$(cat "$T/err")" \
    '^meg-train: iteration 10: .* the minimum loss scale, 1e\+12, for the 10th iteration in a row; try a lower'
like 'the first overflows cause a warning' "$(cat "$T/err")" \
    'iteration 1: a gradient is not finite at the minimum loss scale, 1e\+12; the iteration is skipped'

# ---- constant loss scale ----
status 'an overflow at a constant loss scale ends with 1' 1 train --fp16 --train-iters 3 --eval-iters 0 --loss-scale 1e12
like 'the message has the iteration' "$(cat "$T/err")" 'iteration 1: .*not finite'
train --fp16 --train-iters 3 --eval-iters 0 --loss-scale 1e12 --no-check-for-nan-in-loss-and-grad >"$T/log" 2>"$T/err"
is 'without the check the iteration is skipped' "$? $(grep -c 'skipped iterations:   1' "$T/log")" '0 3'

# ---- resuming ----
for options in --bf16 '--fp16 --loss-scale-window 4 --fp32-residual-connection'; do
    rm -rf "$T/full_run" "$T/half"
    train $options --train-iters 40 --eval-iters 0 --save "$T/full_run" --save-interval 20 >"$T/log"
    train $options --train-iters 40 --eval-iters 0 --save "$T/half" --load "$T/half" --exit-interval 20 >"$T/log" 2>&1
    is "$options: a run stops after 20 steps" "$(cat "$T/half/latest_checkpointed_iteration.txt")" 20
    train $options --train-iters 40 --eval-iters 0 --save "$T/half" --load "$T/half" >"$T/log" 2>&1
    is "$options: a run resumes for 20 steps" "$(grep -c ' consumed samples:' "$T/log")" 20
    ok "$options: the tensors equal those of 40 steps" same_tensors "$T/full_run/iter_0000040" "$T/half/iter_0000040"
    is "$options: the state equals that of 40 steps" "$(jq -c .run "$T/half/iter_0000040/state.json")" "$(jq -c .run "$T/full_run/iter_0000040/state.json")"
done
like 'the state has the loss scale' "$(jq -c .run.grad_scaler "$T/full_run/iter_0000040/state.json")" \
    '^\{"scale":[0-9.]+,"growth_tracker":[0-3],"hysteresis_tracker":-?[0-9]+\}$'
is 'the state of an fp32 run has no loss scale' "$(train --train-iters 20 --eval-iters 0 --exit-interval 2 --save "$T/f" >"$T/log"
    jq -c .run.grad_scaler "$T/f/iter_0000002/state.json")" null
train --bf16 --train-iters 20 --eval-iters 0 --load "$T/f" | loss >"$T/half_losses"
train --train-iters 20 --eval-iters 0 --load "$T/f" | loss >"$T/f32_losses"
ok 'an fp32 checkpoint resumes in bf16' near "$T/half_losses" "$T/f32_losses" 0.02
is 'the resumed bf16 run has all remaining steps' "$(wc -l <"$T/half_losses" | tr -d ' ')" 18

# ---- bytes per parameter: parameters, gradients, main parameters and gradients, two moments ----
bytes() {
    train --dry-run --num-layers 4 --hidden-size 512 --num-attention-heads 8 "$@" | awk '
        $1 == "all" && $2 ~ /^[0-9]+$/ { n = $3 }
        /^  ((main )?(parameters|gradients)|optimizer state) / { sum += $NF }
        END { printf "%.1f\n", sum * 1048576 / n }'
}
is 'fp32 needs 16 bytes per parameter' "$(bytes)" 16.0
is 'bf16 needs 18 bytes per parameter' "$(bytes --bf16)" 18.0
is 'fp16 needs 16 bytes per parameter' "$(bytes --fp16)" 16.0
is 'fp16 with fp32 gradients needs 18 bytes per parameter' "$(bytes --fp16 --accumulate-allreduce-grads-in-fp32)" 18.0
state='--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16'
is 'bf16 gradients and moments need 12 bytes per parameter' "$(bytes --bf16 $state)" 12.0
is 'without main parameters, 8 bytes per parameter' "$(bytes --bf16 $state --main-params-dtype bf16)" 8.0

# ---- usage errors ----
refused() { # MESSAGE OPTION...
    message=$1
    shift
    status "$* ends with 2" 2 train "$@"
    like "$*: the message states the rule" "$(cat "$T/err")" "$message"
}
refused '--fp16 cannot be combined with --bf16' --fp16 --bf16
refused '--fp32-residual-connection: requires --fp16 or --bf16' --fp32-residual-connection
refused '--loss-scale 8: requires --fp16 or --bf16' --loss-scale 8
refused '--on-nan skip: cannot be combined with the dynamic loss scale of --fp16' --fp16 --on-nan skip
done_testing
