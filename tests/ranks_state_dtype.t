#!/bin/sh
# needs: ranks/comm
# modules: optim
# Optimizer state in bf16 (--exp-avg-dtype and others): losses follow those of f32, checkpoints, resuming, bad combinations.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
cd "$T" || exit 1
# Nine of ten tokens follow from the token before.
awk 'BEGIN { srand(3)
             for (i = 0; i < 400; i++) {
                 x = int(rand() * 47); s = x
                 for (k = 1; k < 24; k++) { x = rand() < 0.9 ? (x * 3 + 1) % 47 : int(rand() * 47); s = s " " x }
                 print "{\"text\":\"" s "\"}" } }' >text
meg-preprocess -q --input text --tokenizer-type NullTokenizer --vocab-size 50 --output-prefix ids

# run RANKS FILE OPTION...: train, and write the losses to FILE
run() {
    n=$1 to=$2
    shift 2
    rm -f json
    ranks "$n" meg-train -q --config conf --log-json json "$@" >out 2>&1 </dev/null || cat out >&2
    jq -r .lm_loss json >"$to"
}

state='--bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16' # 12 bytes a parameter
for model in gpt llama; do
    "tiny_$model" >conf
    cat >>conf <<'EOF'
data-path = ids_text_document
split = 1,0,0
train-iters = 200
lr = 3e-3
lr-warmup-iters = 10
lr-decay-style = cosine
adam-beta2 = 0.95
EOF
    run 1 f32
    is "$model: 200 steps" "$(wc -l <f32)" 200
    ok "$model: the model learns" test "$(awk 'NR == 1 { a = $1 } END { print ($1 < 0.6 * a) }' f32)" = 1
    while read -r n options; do
        run "$n" some $state $options
        ok "$model, 12 bytes, $n ranks $options: losses are within 2% of f32" near some f32 0.02
    done <<end
1
2
2 --tensor-model-parallel-size 2
2 --zero-stage 3
end
    # Compare means of 20 iterations, because with bf16 main parameters the weights are rounded stochastically.
    run 1 eight $state --main-params-dtype bf16
    for f in eight f32; do
        awk '{ s += $1 } NR % 20 == 0 { print s / 20; s = 0 }' "$f" >"$f.mean"
    done
    ok "$model, 8 bytes: mean losses are within 2% of f32" near eight.mean f32.mean 0.02
done

# ---- checkpoints ----
echo 'train-iters = 20' >>conf
same_after_resuming() {
    n=$1
    shift
    rm -rf at_once in_two
    ranks "$n" meg-train -q --config conf $state "$@" --save at_once --save-interval 10 >out 2>&1
    ranks "$n" meg-train -q --config conf $state "$@" --save in_two --exit-interval 10 >out 2>&1
    ranks "$n" meg-train -q --config conf $state "$@" --save in_two --load in_two >out 2>&1
    ok "$n ranks $*: a resumed run is equal" same_tensors at_once/iter_0000020 in_two/iter_0000020
}
same_after_resuming 1 --main-params-dtype bf16
same_after_resuming 2 --zero-stage 3 --main-params-dtype bf16
same_after_resuming 2 --tensor-model-parallel-size 2
like 'moments are saved in bf16' "$(head -c 2000 at_once/iter_0000020/optim-2-head.safetensors | tr -d '\0')" \
    'exp_avg[.]decoder[.][a-z_.]*":[{]"dtype":"BF16".*exp_avg_sq[.]decoder[.][a-z_.]*":[{]"dtype":"BF16"'
ranks 2 meg-train -q --config conf --bf16 --load at_once --ckpt-step 10 --log-json other >out 2>&1
run 2 again $state --load at_once --ckpt-step 10
jq -r .lm_loss other >other.loss
is 'another layout and other dtypes resume' "$(wc -l <other.loss) $(wc -l <again)" '10 10'
ok 'their losses are within 2%' near other.loss again 0.02

# ---- options ----
refuses() {
    want=$1
    shift
    status "$*: refused" 2 meg-train --config conf "$@"
    like "$*: the message" "$(cat "$T/err")" "$want"
}
refuses '--main-params-dtype bf16: requires --bf16' --main-params-dtype bf16
refuses '--main-grads-dtype bf16: requires --bf16' --main-grads-dtype bf16 --fp16
refuses '--main-grads-dtype bf16: contradicts --accumulate-allreduce-grads-in-fp32' --bf16 --main-grads-dtype bf16 \
    --accumulate-allreduce-grads-in-fp32
refuses '--exp-avg-dtype bf16: requires --optimizer adam' --optimizer sgd --exp-avg-dtype bf16
refuses '--exp-avg-sq-dtype bf16: requires --optimizer adam' --optimizer sgd --exp-avg-sq-dtype bf16
done_testing
