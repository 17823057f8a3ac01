#!/bin/sh
# modules: ckpt plan
# The presets of meg-train: the numbers of parameters are those of the published weights, and each can be planned.
. "${0%/*}/lib.sh"
cat >"$T/published" <<'end'
gpt2 124439808
gpt2-medium 354823168
gpt2-large 774030080
gpt2-xl 1557611200
llama-2-7b 6738415616
llama-2-13b 13015864320
llama-2-70b 68976648192
llama-3-8b 8030261248
llama-3-70b 70553706496
llama-3.1-8b 8030261248
llama-3.1-70b 70553706496
llama-3.1-405b 405853388800
llama-3.2-1b 1235814400
llama-3.2-3b 3212749824
tinyllama-1.1b 1100048384
smollm2-135m 134515008
smollm2-360m 361821120
smollm2-1.7b 1711376384
mistral-7b-v0.3 7248023552
qwen2.5-0.5b 494032768
qwen2.5-1.5b 1543714304
qwen2.5-3b 3085938688
qwen2.5-7b 7615616512
qwen2.5-14b 14770033664
qwen2.5-32b 32763876352
qwen2.5-72b 72706203648
qwen3-0.6b 596049920
qwen3-1.7b 1720574976
qwen3-4b 4022468096
qwen3-8b 8190735360
qwen3-14b 14768307200
qwen3-32b 32762123264
end
meg-train --list-presets >"$T/presets"
is 'models have the numbers of parameters that were published' "$(awk '{ print $1, $2 }' "$T/presets")" \
    "$(cat "$T/published")"
while read -r name numel _ _ _ vocab _; do
    ranks=1024
    [ "$name" != llama-3.1-405b ] || ranks=2016 # its 126 layers have few divisors
    plan() {
        meg-train -q --model-preset "$name" --seq-length 1024 --micro-batch-size 1 --global-batch-size $ranks --bf16 \
            --train-iters 1 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer --vocab-size $((vocab - 1)) "$@"
    }
    is "$name has the same number of parameters in a plan" \
        "$(plan --dry-run | awk '$1 == "all" { print $3 }')" "$numel"
    status "layouts of $name are found" 0 plan --plan --world-size $ranks --hardware h200
done <"$T/presets"

preset() { meg-train "$@" --dump-config | grep -E '^(num-layers|hidden-size|rope-scaling-factor) ='; }
is 'options after --model-preset override it, those before it do not' \
    "$(preset --hidden-size 64 --model-preset llama-3.2-1b --num-layers 2)" "$(printf '%s\n' 'num-layers = 2' \
    'hidden-size = 2048' 'rope-scaling-factor = 32.0')"
echo 'model-preset = gpt2' >"$T/preset.conf"
is 'a config file can name a preset' "$(preset --config "$T/preset.conf")" "$(printf '%s\n' 'num-layers = 12' \
    'hidden-size = 768' 'rope-scaling-factor = 8.0')"
status 'an unknown preset is refused' 2 meg-train --model-preset gpt5
like 'and the message says where the names are' "$(cat "$T/err")" 'unknown preset gpt5; --list-presets prints the names'
done_testing
