# Sourced after lib.sh: compare training and inference on the CUDA backend with those on the CPU.
# $gpu is the directory of the programs that have the backend; they run with --device cuda.  If $few is set, only some
# of the configurations run, because tests on the double of the CUDA runtime are slow.
cat >"$T/conf" <<'end'
num-layers = 2
hidden-size = 64
num-attention-heads = 4
seq-length = 32
max-position-embeddings = 32
micro-batch-size = 2
global-batch-size = 4
lr = 1e-3
train-iters = 10
mock-data = yes
tokenizer-type = NullTokenizer
vocab-size = 99
eval-iters = 2
eval-interval = 5
log-interval = 1
attention-dropout = 0
hidden-dropout = 0
end

llama='--position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear --group-query-attention
    --num-query-groups 2 --untie-embeddings-and-output-weights'

# numbers KEY FILE: print the number with a key in each line of JSON
numbers() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" "$2"; }

# like_cpu TOLERANCE OPTION...: the losses of ten steps are within TOLERANCE of those of the CPU, and the gradient norms
# within ten times TOLERANCE
like_cpu() {
    tolerance=$1
    shift
    meg-train -q --config "$T/conf" --device cpu --log-json "$T/cpu.json" "$@" >"$T/out" 2>"$T/cpu.err" || cat "$T/cpu.err"
    "$gpu/meg-train" -q --config "$T/conf" --device cuda --log-json "$T/gpu.json" "$@" >"$T/out" 2>"$T/gpu.err" ||
        sed 's/^/# /' "$T/gpu.err"
    for key in lm_loss grad_norm; do
        numbers "$key" "$T/cpu.json" >"$T/cpu.$key"
        numbers "$key" "$T/gpu.json" >"$T/gpu.$key"
    done
    ok "losses of ten steps are those of the CPU: $*" near "$T/gpu.lm_loss" "$T/cpu.lm_loss" "$tolerance"
    ok "gradient norms of ten steps are those of the CPU: $*" near "$T/gpu.grad_norm" "$T/cpu.grad_norm" \
        "$(awk -v t="$tolerance" 'BEGIN { print 10 * t }')"
    rm -f "$T/cpu.json" "$T/gpu.json"
}

like_cpu 1e-5
# shellcheck disable=SC2086 # options
like_cpu 1e-5 $llama
like_cpu 2e-3 --bf16
like_cpu 1e-5 --attention-dropout 0.1 --hidden-dropout 0.1
if [ -z "${few:-}" ]; then
    # shellcheck disable=SC2086
    like_cpu 2e-3 --bf16 $llama
    like_cpu 2e-3 --fp16 --initial-loss-scale 1024
    like_cpu 2e-3 --bf16 --attention-dropout 0.1 --hidden-dropout 0.1
    like_cpu 2e-3 --bf16 --main-params-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16
    like_cpu 1e-5 --optimizer sgd
    like_cpu 1e-5 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    like_cpu 1e-5 --reset-attention-mask --reset-position-ids
    like_cpu 1e-5 --no-bias-gelu-fusion
    like_cpu 1e-5 --seq-length 31 --hidden-size 60 --vocab-size 97
    like_cpu 1e-5 --log-params-norm --log-num-zeros-in-grad
fi

# resumes OPTION...: a run that was stopped after five steps continues bit for bit
resumes() {
    rm -rf "$T/a" "$T/b"
    run="$gpu/meg-train -q --config $T/conf --device cuda --deterministic-mode --save-interval 5"
    # shellcheck disable=SC2086
    {
        $run --save "$T/a" "$@" >"$T/out" 2>&1
        $run --save "$T/b" --exit-interval 5 "$@" >"$T/out" 2>&1
        $run --save "$T/b" --load "$T/b" "$@" >"$T/out" 2>&1
    }
    ok "a resumed run has the checkpoint of an uninterrupted run: $*" same_tensors "$T/a/iter_0000010" "$T/b/iter_0000010"
}
resumes
[ -n "${few:-}" ] || resumes --bf16 --attention-dropout 0.1 --hidden-dropout 0.1

# The checkpoint in $T/a is that of the last run.
printf '{"ids":[%s]}\n' 1,2,3 4,5 6,7,8,9,1,2,3 5 >"$T/prompts"
# infers PROGRAM OPTION...: write the results of both devices for the prompts to $T/cpu and $T/gpu
infers() {
    program=$1
    shift
    "$program" --load "$T/a" --input "$T/prompts" --device cpu "$@" >"$T/cpu" 2>"$T/err"
    "$gpu/$program" --load "$T/a" --input "$T/prompts" --device cuda "$@" >"$T/gpu" 2>"$T/err" || sed 's/^/# /' "$T/err"
}
infers meg-eval --task logprobs --params-dtype fp32
for device in cpu gpu; do
    numbers sum "$T/$device" | sed "s/^-//; /^0$/d" >"$T/$device.logprob" # the last prompt has no log-probabilities
done
ok 'log-probabilities are those of the CPU' near "$T/gpu.logprob" "$T/cpu.logprob" 1e-5
infers meg-generate --tokens-to-generate 8 --greedy --params-dtype fp32
ok 'generated tokens are those of the CPU' test -s "$T/cpu" -a "$(cat "$T/cpu")" = "$(cat "$T/gpu")"
