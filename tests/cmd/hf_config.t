#!/bin/sh
# modules: ckpt
# Hugging Face directories in which config.json does not determine the model alone.
. "${0%/*}/../lib.sh"
option() { # DIR NAME: an option of the model in DIR
    meg-convert --info "$1" --json 2>&1 | jq -r ".options.\"$2\""
}
variant() { # FROM TO FILTER: copy the model FROM to $T/TO, and apply a filter of jq to config.json
    cp -r "$1" "$T/$2"
    chmod -R u+w "$T/$2"
    jq "$3" "$1/config.json" >"$T/$2/config.json"
}

# ---- config.json without model_type

perl "${0%/*}/../tiny_gpt2.pl" "$T/gpt2"
for from in "$T/gpt2" "$golden"/models/llama-tiny "$golden"/models/bert-tiny "$golden"/models/megatron-bert-tiny "$golden"/models/t5-v1_0-tiny; do
    name=${from##*/}
    variant "$from" "$name-class" 'del(.model_type)'
    is "$name: the class of the model determines its type" "$(meg-convert --info "$T/$name-class" --json | jq -c '.options')" \
        "$(meg-convert --info "$from" --json | jq -c '.options')"
done
for name in gpt2 bert-tiny t5-v1_0-tiny; do
    from=$golden/models/$name
    [ -d "$from" ] || from=$T/$name
    variant "$from" "$name-none" 'del(.model_type, .architectures)'
    is "$name: without a class, the members determine the type" "$(option "$T/$name-none" model)" "$(option "$from" model)"
done
variant "$T/gpt2" moe 'del(.model_type) | .architectures = ["Qwen2MoeForCausalLM"]'
status 'another class whose name begins alike is refused' 65 meg-convert --info "$T/moe"
like 'the message names model_type' "$(cat "$T/err")" 'moe/config.json: .*model_type'

# ---- members that are mapped, harmless, or refused

llama=$golden/models/llama-tiny
variant "$llama" harmless '.use_cache = true | .embd_dropout = 0.1 | .rope_scaling = null'
is 'a harmless member changes no option' "$(meg-convert --info "$T/harmless" --json | jq .options)" \
    "$(meg-convert --info "$llama" --json | jq .options)"
variant "$llama" unknown '.clip_qkv = 8 | .rope_scaling = {rope_type: "linear", factor: 2, magic: 1}'
status 'an unknown member is refused' 65 meg-convert --info "$T/unknown"
like 'the message names it' "$(cat "$T/err")" 'unknown/config.json: unknown member clip_qkv, .*--ignore-config-keys clip_qkv$'
status 'an unknown member of an object is refused' 65 meg-convert --info "$T/unknown" --ignore-config-keys clip_qkv
like 'the message names both' "$(cat "$T/err")" 'unknown member rope_scaling.magic, .*--ignore-config-keys rope_scaling.magic$'
is 'members are ignored' "$(meg-convert --info "$T/unknown" --json --ignore-config-keys clip_qkv,rope_scaling.magic |
    jq -S .options)" "$(meg-convert --info "$llama" --json |
    jq -S '.options | ."rotary-seq-len-interpolation-factor" = "2.0"')"
variant "$llama" packed '.quantization_config = {bits: 4}'
status 'packed weights are refused' 65 meg-convert --info "$T/packed"
like 'the message names the member' "$(cat "$T/err")" 'quantization_config is {"bits":4}, but only null is supported'
variant "$llama" experts '.model_type = "mixtral"'
status 'a mixture of experts is refused' 65 meg-convert --info "$T/experts"
like 'the message has the type and the member' "$(cat "$T/err")" 'model_type mixtral is not supported because of num_experts'

# ---- a T5 without lm_head.weight

tied=$golden/models/t5-v1_0-tiny
variant "$tied" unscaled '.scale_decoder_outputs = false'
is 'scale_decoder_outputs false, no lm_head.weight: the output layer is tied' \
    "$(option "$T/unscaled" untie-embeddings-and-output-weights) $(option "$tied" untie-embeddings-and-output-weights)" 'no no'
isnt 'tie_word_embeddings alone: the output is scaled' "$(option "$tied" logit-multiplier)" null
is 'scale_decoder_outputs false: the output is not scaled' "$(option "$T/unscaled" logit-multiplier)" null
variant "$tied" missing '.tie_word_embeddings = false | del(.scale_decoder_outputs)'
status 'tie_word_embeddings false, no lm_head.weight: the tensor is missing' 65 meg-convert --info "$T/missing"
like 'the message names the tensor' "$(cat "$T/err")" '1 missing: lm_head.weight'
meg-convert -q --load-dir "$T/unscaled" --save-dir "$T/unscaled-native" 2>"$T/err" || cat "$T/err"
status 'a tied output layer that is not scaled is written untied' 0 \
    meg-convert -q --load-dir "$T/unscaled-native" --save-dir "$T/untied" --max-shard-size 10KB
like 'a warning says so' "$(cat "$T/err")" 'lm_head.weight, a copy of the word embedding, is written'
is 'config.json says so to transformers 4 and 5' \
    "$(jq -c '[.tie_word_embeddings, .scale_decoder_outputs]' "$T/untied/config.json")" '[false,false]'
is 'the index counts the copy' "$(jq .metadata.total_size "$T/untied/model.safetensors.index.json")" \
    "$(meg-convert --info "$T/untied" --json | jq '[.tensors[].bytes] | add')"

# ---- a BERT without binary head, as BertForMaskedLM

. "${0%/*}/../bert.sh"
meg-train -q --config "$T/conf" --train-iters 1 --lr-warmup-iters 0 --bert-no-binary-head --num-tokentypes 3 --save "$T/masked" \
    --apply-residual-connection-post-layernorm --openai-gelu >"$T/log" 2>"$T/err" || cat "$T/err"
convert masked masked-hf
is 'the class is BertForMaskedLM' "$(jq -c '[.architectures[0], .type_vocab_size]' "$T/masked-hf/config.json")" '["BertForMaskedLM",3]'
is 'the directory is read as a model without binary head' \
    "$(option "$T/masked-hf" bert-no-binary-head) $(option "$T/masked-hf" num-tokentypes)" 'yes 3'
convert masked-hf native-hf
ok 'token types are kept' same_tensors "$T/native-hf/release" "$T/masked/iter_0000001"
echo 'the [MASK] work[SEP]' >"$T/line"
meg-eval --task fill-mask --load "$T/masked" --input "$T/line" >"$T/want"
is 'a mask is filled' "$(jq ".ids | length > 4" "$T/want")" true
is 'both formats fill the mask alike' "$(meg-eval --task fill-mask --load "$T/masked-hf" --input "$T/line")" "$(cat "$T/want")"
status 'Megatron has no such model' 2 meg-convert --load-dir "$T/masked" --save-dir "$T/pt" --saver megatron
like 'the message has the option and its value' "$(cat "$T/err")" 'before core: --num-tokentypes 3 would be read as 0; use'
status 'a second segment requires two token types' 2 meg-train -q --config "$T/conf" --num-tokentypes 1
like 'the message says so' "$(cat "$T/err")" '--num-tokentypes 1: samples have two segments'
status 'a GPT has no token types' 2 meg-train -q --config "$T/conf" --model gpt --num-tokentypes 2
like 'the message names the family' "$(cat "$T/err")" 'a GPT: --num-tokentypes 2 is not supported; use --model bert'
ok 'training of a BERT without binary head continues' meg-train -q --load "$T/masked-hf" --finetune --seq-length 32 \
    --micro-batch-size 2 --train-iters 2 --lr 1e-3 --eval-iters 0 --split 100,0,0 --data-path "$T/text_text_sentence"
done_testing
