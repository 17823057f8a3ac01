#!/bin/sh
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

# ---- a T5 without lm_head.weight

tied=$golden/models/t5-v1_0-tiny
variant "$tied" unscaled '.scale_decoder_outputs = false'
is 'scale_decoder_outputs false, no lm_head.weight: the output layer is tied' \
    "$(option "$T/unscaled" untie-embeddings-and-output-weights) $(option "$tied" untie-embeddings-and-output-weights)" 'no no'
isnt 'tie_word_embeddings alone: the output is scaled' "$(option "$tied" logits-scale)" null
is 'scale_decoder_outputs false: the output is not scaled' "$(option "$T/unscaled" logits-scale)" null
variant "$tied" missing '.tie_word_embeddings = false | del(.scale_decoder_outputs)'
status 'tie_word_embeddings false, no lm_head.weight: the tensor is missing' 65 meg-convert --info "$T/missing"
like 'the message names the tensor' "$(cat "$T/err")" '1 missing: lm_head.weight'
done_testing
