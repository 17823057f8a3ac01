#!/bin/sh
# modules: plan
# Figures of --dry-run, --plan, --info and the log, compared with values that are computed here from the sizes of the model.
# shellcheck disable=SC2086 # $... are lists of options
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"
h=1024 layers=4 v=65536 s=512 batch=32
cat >"$T/big.conf" <<end
num-layers = $layers
hidden-size = $h
num-attention-heads = 16
seq-length = $s
max-position-embeddings = $s
micro-batch-size = 2
global-batch-size = $batch
train-iters = 10
lr = 1e-2
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = $((v - 1))
end
dry() { meg-train -q --config "$T/big.conf" --dry-run "$@" >"$T/plan"; }
# of NAME: print the numbers in the line NAME of the plan.  mib BYTES...: print MiB as the plan does
of() { sed -n "s/^ *$1  *\([0-9]\)/\1/p" "$T/plan" | head -n 1 | tr -s ' ' | sed 's/ $//'; }
mib() { for n; do awk -v n="$n" 'BEGIN { printf "%.1f\n", n / 1048576 }'; done | tr '\n' ' ' | sed 's/ $//'; }

# Each layer has 12 h^2 weights, and 13 h elements in biases and norms.  The final norm has 2 h.
layer=$((12 * h * h + 13 * h)) embedding=$((v * h)) positions=$((s * h))
first=$((embedding + positions + 2 * layer)) last=$((embedding + 2 * layer + 2 * h))
all=$((embedding + positions + 4 * layer + 2 * h))

# ---- a tied embedding on two stages, four data-parallel ranks, a distributed optimizer ----
dry --world-size 8 --pipeline-model-parallel-size 2 --use-distributed-optimizer
is 'weights' "$(of weights)" "17 $((positions + 48 * h * h))"
is 'biases and norms' "$(of 'biases and norms, no decay')" "34 $((54 * h))"
is 'all parameters' "$(of all)" "52 $all"
# 6 FLOP per multiply-add: 12 h^2 and 2 s h (scores and values) per layer, and h v
work=$((6 * (layers * (12 * h * h + 2 * s * h) + h * v) * batch * s))
is 'work of a step' "$(of 'a step')" "$(printf '%.2e' $work) $((batch * s))"
is 'work of the run' "$(of 'the run')" "$(printf '%.2e' $((10 * work))) $((10 * batch * s))"
is 'parameters of both stages' "$(of parameters)" "$(mib $((4 * first)) $((4 * last)))"
is 'gradients of both stages' "$(of gradients)" "$(mib $((4 * first)) $((4 * last)))"
is 'the optimizer state is two arrays, sharded over four ranks' "$(of 'optimizer state')" "$(mib $((2 * first)) $((2 * last)))"
# The largest bucket is the embedding, which is received in four parts.  Each rank reduces its shard over both stages.
is 'receive buffers are a bucket and a shard of the tied embedding' "$(of 'receive buffers')" "$(mib $((5 * embedding)) $((5 * embedding)))"
# Each rank has 4 micro-batches, and sends their activations or gradients.
is 'bytes sent between stages' "$(sed -n '/^sent/,/^time/p' "$T/plan" | sed -n 's/^  pipeline  *//p' | tr -s ' ')" \
    "$(mib $((4 * 2 * s * h * 4)) $((4 * 2 * s * h * 4)))"
is 'three quarters of gradients and parameters are sent to the other ranks' "$(of data-parallel)" "$(mib $((6 * first)) $((6 * last)))"
sed -n '/^sent/,/^time/p' "$T/plan" >"$T/sent"
is 'the shard of the tied gradient is reduced over two stages' "$(sed -n 's/^  embedding  *//p' "$T/sent" | tr -s ' ')" "$(mib $embedding $embedding)"
step=$(sed -n '/^time/,$ s/^  all  *//p' "$T/plan")
ok 'tokens a second are those of the step' awk -v got="$(of 'tokens a second')" -v want="$(echo $((batch * s)) "$step" | awk '{ print $1 / $2 }')" \
    'BEGIN { exit !(got > 0.995 * want && got < 1.005 * want) }'
peak=$(sed -n 's/.*of \([0-9.]*\) TFLOP.s a rank$/\1/p' "$T/plan")
ok 'utilization is the work per rank and second, of the peak' awk -v got="$(of 'model FLOP.s utilization' | cut -d% -f1)" \
    -v want="$(echo $work "$step" "$peak" | awk '{ print 100 * $1 / 8 / $2 / ($3 * 1e12) }')" \
    'BEGIN { exit !(got > 0.99 * want && got < 1.01 * want) }'
is 'samples of the run, and of an epoch of 68244670 tokens' "$(of train | cut -d ' ' -f 2-6)" "33333 68244670 320 $(((68244670 - 1) / s)) 1"

# ---- bytes of checkpoints: bf16 weights, and main parameters, averages and squares in fp32 ----
saved() { # OPTION...: print the MiB of a checkpoint, and of the buffer of a rank
    dry --bf16 --async-save --save "$T/none" --save-interval 4 "$@"
    sed -n 's/^checkpoints  *\([0-9.]*\) MiB each.*/\1/p; s/^  asynchronous save  *//p' "$T/plan" | sort -rn | tr '\n' ' '
}
is 'a checkpoint and its buffer have 14 bytes per parameter' "$(saved)" "$(mib $((14 * all)) $((14 * all))) "
is 'without optimizer state, they have 2' "$(saved --no-save-optim)" "$(mib $((2 * all)) $((2 * all))) "
is 'two ranks buffer a half each' "$(saved --world-size 2)" "$(mib $((14 * all)) $((7 * all))) "
is 'two shards of the optimizer buffer a half each' "$(saved --world-size 2 --use-distributed-optimizer)" "$(mib $((14 * all)) $((7 * all))) "
is 'checkpoints are written at multiples of the interval and at the end' "$(of 'at iterations')" '4 8 10'

dry --save "$T/none" --save-interval 2
is 'of five checkpoints, the first three and the last are printed' "$(of 'at iterations')" '2 4 6 ... 10'
dry --save "$T/none" --save-interval 2 --train-iters 9
is 'four are printed, and the one at the end' "$(of 'at iterations')" '2 4 6 8 9'

# One group of keys and values has 2 x 64 rows, instead of 2 h.
dry --group-query-attention
is '--group-query-attention has one group by default' "$(of all)" "52 $((all - layers * (2 * h - 128) * (h + 1)))"
dry --group-query-attention --num-query-groups 4
is 'four groups' "$(of all)" "52 $((all - layers * (2 * h - 512) * (h + 1)))"

# ---- --plan: no layout exceeds the memory of a GPU, of which 2.5e9 bytes are reserved ----
sizes='--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --bf16'
dry --hardware h100
unlike 'a small model fits on a GPU' "$(cat "$T/plan")" 'does not fit'
dry $sizes --hardware h100
like 'one with 18 bytes for each of 6.7e9 parameters does not' "$(cat "$T/plan")" '^  does not fit: a rank has 76294 MiB$'
for limit in 'h100 80e9' 'h200 141e9'; do
    meg-train -q --config "$T/big.conf" $sizes --plan --world-size 8 --global-batch-size 64 --hardware ${limit% *} >"$T/layouts"
    awk '/^[1-5] +[0-9]+s? / { print $(NF - 3) }' "$T/layouts" >"$T/gib"
    is "$limit: five layouts fit" "$(awk -v limit="${limit#* }" '$1 > 0 && $1 <= (limit - 2.5e9) / 1073741824' "$T/gib" | wc -l | tr -d ' ')" 5
    # With 8 data-parallel ranks, micro-batches of 1, 2, 4 and 8 need 55, 63, 80 and 112 GiB.
    is "$limit: the largest micro-batch that fits" "$(awk '/^[1-5] +1 +1 +1 .*[.]/ { print $7 }' "$T/layouts" | sort -n | tail -n 1)" \
        "$([ "${limit% *}" = h100 ] && echo 2 || echo 8)"
    options=$(sed -n 's/^1  --/--/p' "$T/layouts")
    dry $sizes --world-size 8 --global-batch-size 64 --hardware ${limit% *} $options
    is "$limit: GiB are those of the dry run without the reserve" "$(head -n 1 "$T/gib")" \
        "$(sed -n '/^memory/,$ s/^  all  *//p' "$T/plan" | head -n 1 | awk '{ printf "%.1f", ($1 - 2.5e9 / 1048576) / 1024 }')"
done

# ---- --info and the log of a run: 5 iterations of 4 samples, of a model with h 32 and 2 layers ----
train --train-iters 5 --save "$T/ck" >"$T/log"
meg-convert --info "$T/ck" >"$T/info"
number=$((101 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32))
is '--info has iteration, parameters, vocabulary and end-of-document id' \
    "$(sed -n 's/^\(iteration\|parameters\|vocab_size\|eod_id\)  *//p' "$T/info" | tr '\n' ' ')" "5 $number 101 100 "
is 'tensors have 4 bytes per element: weights and two arrays of state' \
    "$(awk '/safetensors$/ { n++; bytes += $4 } END { print n, bytes }' "$T/info")" "84 $((12 * number))"
is 'consumed samples' "$(sed -n 's/.*consumed samples: *\([0-9]*\) .*/\1/p' "$T/log" | tr '\n' ' ')" '4 8 12 16 20 '
# Two iterations of warmup to 1e-2, then a cosine from there to 1e-4 at iteration 5
is 'learning rates' "$(sed -n 's/.*learning rate: \([^ ]*\) .*/\1/p' "$T/log" | tr '\n' ' ')" \
    "$(awk 'BEGIN { for (i = 1; i <= 5; i++)
        printf "%.6E ", i < 3 ? 0.01 * i / 2 : 1e-4 + 0.0099 / 2 * (1 + cos(3.14159265358979 * (i - 2) / 3)) }')"
is 'the perplexity is exp(loss)' "$(sed -n 's/.*loss value: \([^ ]*\) | lm loss PPL: \([^ ]*\) .*/\1 \2/p' "$T/log" |
    awk '{ want = exp($1); print ($2 > want * 0.99999 && $2 < want * 1.00001) }' | sort -u)" 1
done_testing
