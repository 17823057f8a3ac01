#!/bin/sh
# meg-train in bf16 and fp16: the losses of f32, the loss scale, what is skipped, saved and gone on with, and memory.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

loss() { sed -n 's/.* lm loss: \([^ ]*\) .*/\1/p'; }

# ---- 200 iterations ----
train --train-iters 200 --eval-iters 0 | loss >"$T/f32"
is '200 losses' "$(wc -l <"$T/f32" | tr -d ' ')" 200
while read -r options; do
    train --train-iters 200 --eval-iters 0 $options | loss >"$T/narrow"
    ok "$options: within 2% of f32" near "$T/narrow" "$T/f32" 0.02
    ok 'and not f32' test "$(cat "$T/narrow")" != "$(cat "$T/f32")"
done <<end
--bf16
--bf16 --fp32-residual-connection --loss-scale 64
--fp16 --initial-loss-scale 32768
--fp16 --fp32-residual-connection --accumulate-allreduce-grads-in-fp32 --loss-scale 1024
end

# ---- the dynamic scale ----
# what the scale has to be, from what was skipped
expected='{ for (i = 1; i <= NF; i++) { if ($i == "scale:") s = $(i + 1); if ($i == "skipped") k = $(i + 2) }
    if (k) { good = 0; if (--left <= 0) scale = scale / 2 < least ? least : scale / 2 }
    else if (++good == window) { good = 0; left = hysteresis; scale *= 2 }
    if (s != sprintf("%.1f", scale)) wrong = wrong " " NR ":" s; skipped += k
    if (k && /lm loss|grad norm/) wrong = wrong " " NR ":told" }
    END { print skipped (wrong ? " wrong:" wrong : "") }'
scales() { # SCALE LEAST WINDOW HYSTERESIS
    awk -v scale="$1" -v least="$2" -v window="$3" -v left="$4" -v hysteresis="$4" "$expected"
}
train --fp16 --train-iters 60 --eval-iters 0 >"$T/log"
like 'it begins at 2^32, halves from the second overflow on' "$(scales 4294967296 1 1000 2 <"$T/log")" '^1[5-9]$'
train --fp16 --train-iters 60 --eval-iters 0 --initial-loss-scale 1048576 --loss-scale-window 3 --hysteresis 3 >"$T/log"
like 'and doubles after a window' "$(scales 1048576 1 3 3 <"$T/log")" '^[1-9][0-9]?$'
train --fp16 --train-iters 12 --eval-iters 0 --initial-loss-scale 1e12 --min-loss-scale 1e12 >"$T/log" 2>"$T/err"
is 'it does not fall below the least, and ten iterations in a row there end the run' \
    "$? $(scales 1000000000000 1000000000000 1000 2 <"$T/log")" '1 9'
like 'which the message says' "$(cat "$T/err")" \
    '^meg-train: iteration 10: .* a loss scale of 1e\+12, the least there is, for the 10th iteration in a row; a lower'
like 'which is warned of' "$(cat "$T/err")" \
    'iteration 1: a gradient is not finite at a loss scale of 1e\+12, the least there is; the iteration is left out'

# ---- a constant one ----
status 'what it makes infinite is an error' 1 train --fp16 --train-iters 3 --eval-iters 0 --loss-scale 1e12
like 'that is named' "$(cat "$T/err")" 'iteration 1: .*not finite'
train --fp16 --train-iters 3 --eval-iters 0 --loss-scale 1e12 --no-check-for-nan-in-loss-and-grad >"$T/log" 2>"$T/err"
is 'or, when nobody checks, left out' "$? $(grep -c 'skipped iterations:   1' "$T/log")" '0 3'

# ---- saved and gone on with ----
for options in --bf16 '--fp16 --loss-scale-window 4 --fp32-residual-connection'; do
    rm -rf "$T/whole" "$T/half"
    train $options --train-iters 40 --eval-iters 0 --save "$T/whole" --save-interval 20 >"$T/log"
    train $options --train-iters 40 --eval-iters 0 --save "$T/half" --load "$T/half" --exit-interval 20 >"$T/log" 2>&1
    is "$options: stopped after twenty" "$(cat "$T/half/latest_checkpointed_iteration.txt")" 20
    train $options --train-iters 40 --eval-iters 0 --save "$T/half" --load "$T/half" >"$T/log" 2>&1
    is 'twenty more' "$(grep -c ' consumed samples:' "$T/log")" 20
    ok 'are the tensors of forty' same_tensors "$T/whole/iter_0000040" "$T/half/iter_0000040"
    is "$options: the state, too" "$(jq -c .run "$T/half/iter_0000040/state.json")" "$(jq -c .run "$T/whole/iter_0000040/state.json")"
done
like 'the loss scale is in it' "$(jq -c .run.grad_scaler "$T/whole/iter_0000040/state.json")" \
    '^\{"scale":[0-9.]+,"growth_tracker":[0-3],"hysteresis_tracker":-?[0-9]+\}$'
is 'an f32 run has none' "$(train --train-iters 20 --eval-iters 0 --exit-interval 2 --save "$T/f" >"$T/log"
    jq -c .run.grad_scaler "$T/f/iter_0000002/state.json")" null
train --bf16 --train-iters 20 --eval-iters 0 --load "$T/f" | loss >"$T/narrow"
train --train-iters 20 --eval-iters 0 --load "$T/f" | loss >"$T/wide"
ok 'an f32 checkpoint goes on in bf16' near "$T/narrow" "$T/wide" 0.02
is 'to the end' "$(wc -l <"$T/narrow" | tr -d ' ')" 18

# ---- bytes a parameter: parameters, gradients, main parameters and gradients, two moments ----
bytes() {
    train --dry-run --num-layers 4 --hidden-size 512 --num-attention-heads 8 "$@" | awk '
        $1 == "all" && $2 ~ /^[0-9]+$/ { n = $3 }
        /^  ((main )?(parameters|gradients)|optimizer state) / { sum += $NF }
        END { printf "%.1f\n", sum * 1048576 / n }'
}
is 'f32: 16' "$(bytes)" 16.0
is 'bf16: 18' "$(bytes --bf16)" 18.0
is 'fp16: 20' "$(bytes --fp16)" 20.0
is 'fp16 with f32 gradients: 18' "$(bytes --fp16 --accumulate-allreduce-grads-in-fp32)" 18.0

# ---- refused ----
refused() { # MESSAGE OPTION...
    message=$1
    shift
    status "refused: $*" 2 train "$@"
    like "and told: $*" "$(cat "$T/err")" "$message"
}
refused '--fp16 --bf16: give only one of the two' --fp16 --bf16
refused '--fp32-residual-connection: only with --fp16 or --bf16' --fp32-residual-connection
refused '--loss-scale 8: only with --fp16 or --bf16' --loss-scale 8
refused '--on-nan skip: contradicts --fp16 without --loss-scale' --fp16 --on-nan skip
done_testing
