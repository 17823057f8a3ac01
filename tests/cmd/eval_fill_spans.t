#!/bin/sh
# modules: eval
# meg-eval --task fill-mask with a T5 that learns which number belongs to a letter.
. "${0%/*}/../lib.sh"
. "${0%/*}/../facts.sh"
cat >>"$T/conf" <<'end'
model = t5
num-layers = 2
decoder-seq-length = 16
mask-prob = 0.15
train-iters = 300
lr = 3e-3
init-method-std = 0.1
vocab-extra-ids = 8
end
ok 'a T5 is trained' meg-train -q --config "$T/conf" --save "$T/t5"
fill() { meg-eval --task fill-mask --load "$T/t5" "$@"; }

cat >"$T/lines" <<'end'
C is [MASK]. C is 2.
{"text": "b is 1. B is [MASK].", "answer": "1"}
end
fill <"$T/lines" >"$T/out"
is 'text: spans are filled, in plain text and in JSON' "$(jq -r .text "$T/out")" "$(printf 'c is 2. c is 2.\nb is 1. b is 1.')"
is 'ids: those of the filled text' "$(jq -c '.ids | length' "$T/out")" "$(printf '8\n8')"
is 'top_logprobs: there is a list of 5 first tokens for each span' "$(jq -c '.top_logprobs | map(length)' "$T/out")" \
    "$(printf '[5]\n[5]')"
is 'the first token of a list begins the span' "$(jq -r '.top_logprobs[0][0].token' "$T/out")" "$(printf '2\n1')"
echo 'd [MASK]. [MASK] is 3.' | fill >"$T/two"
is 'each mask is one span' "$(jq -c '.top_logprobs | length' "$T/two")" 2
jq -c '{ids: (.ids | .[2] = 4)}' "$T/out" | head -n 1 >"$T/ids"
is 'ids with masks have the predictions of the text' "$(fill --input "$T/ids" | jq -r .text)" 'c is 2. c is 2.'
echo 'A is [MASK].' | fill --top-n-logprobs 510 >"$T/all"
ok 'the probabilities of all tokens sum to 1' jq -e '.top_logprobs[0] | map(.logprob | exp) | add - 1 | fabs < 1e-5' "$T/all"

is 'a sentinel marks a span as the mask token does' "$(echo 'd <extra_id_0>. [MASK] is 3.' | fill)" "$(cat "$T/two")"

refuses() { # LINE MESSAGE
    echo "$1" >"$T/bad"
    status "$1: exit status 65" 65 fill --input "$T/bad"
    like "$1: the message names the reason" "$(cat "$T/err")" "$2"
}
refuses 'no mask' 'line 1: the line has no mask; write \[MASK\]'
refuses '[MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK]' 'the line has 9 masks, but the vocabulary has only 8 sentinel tokens'
refuses 'a b c d e f g h i j k l m n o p q [MASK]' 'line 1: the line has 18 tokens'
refuses 'a <extra_id_0> <extra_id_2>' 'line 1: found <extra_id_2> instead of <extra_id_1>; number the sentinels'
refuses '[MASK] <extra_id_0>' 'line 1: found <extra_id_0> instead of <extra_id_1>'
status 'a tokenizer without sentinels: exit status 2' 2 \
    fill --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$golden/../tokenizers/hf-bert" --input "$T/bad"
like 'a tokenizer without sentinels: the message says so' "$(cat "$T/err")" 'requires a tokenizer with the sentinels <extra_id_0>'

ok 'a T5 with rotary positions is trained' \
    meg-train -q --config "$T/conf" --position-embedding-type rope --max-position-embeddings 512 --save "$T/rope"
is 'rotary positions: spans are filled' "$(meg-eval --task fill-mask --load "$T/rope" --input "$T/lines" | jq -r .text)" \
    "$(printf 'c is 2. c is 2.\nb is 1. b is 1.')"

ok 'a T5 is initialized that ends no span' \
    meg-train -q --config "$T/conf" --untie-embeddings-and-output-weights --lr 0 --train-iters 1 --lr-warmup-iters 0 --save "$T/random"
echo 'a [MASK] b' >"$T/one"
is 'a span ends where the decoder is full' "$(meg-eval --task fill-mask --load "$T/random" --input "$T/one" | jq '.ids | length')" 17
echo 'a [MASK] b [MASK]' >"$T/two"
status 'a span that begins after that: exit status 65' 65 meg-eval --task fill-mask --load "$T/random" --input "$T/two"
like 'a span that begins after that: the message says why' "$(cat "$T/err")" \
    'line 1: the spans before mask 1 .counted from 0. have 16 tokens, the most that the decoder takes; write fewer masks'
ok 'a T5 with a long maximum sequence length is initialized' meg-train -q --config "$T/conf" --lr 0 --train-iters 1 \
    --seed 2 --untie-embeddings-and-output-weights --position-embedding-type relative --max-position-embeddings 65536 \
    --lr-warmup-iters 0 --save "$T/long"
is 'all spans have at most 512 tokens' "$(timeout 60 meg-eval --task fill-mask --load "$T/long" --input "$T/one" | jq '.ids | length')" 513

# A T5 in the format of Hugging Face, and the tokenizers of Hugging Face: a tokenizer.json with sentinels after its 400
# tokens, and a SentencePiece model, to whose 420 pieces T5Tokenizer adds them.  With small random weights and tied
# embeddings, the model predicts the token that it reads, so the first span is empty.
tokenizers=$golden/../tokenizers
meg-train -q --config "$T/conf" --position-embedding-type relative --normalization RMSNorm --disable-bias-linear \
    --softmax-scale 1 --activation-func relu --logit-multiplier 0.17677669529663687 --init-method-std 0.001 --vocab-extra-ids 30 --lr 0 \
    --train-iters 1 --lr-warmup-iters 0 --save "$T/native" 2>"$T/err" || cat "$T/err"
ok 'a T5 is converted to Hugging Face' meg-convert --load-dir "$T/native" --save-dir "$T/hf"
mkdir "$T/json" "$T/spm"
cp "$T"/hf/*.safetensors "$T/json/"
cp "$T"/hf/*.safetensors "$T/spm/"
jq '.decoder_start_token_id = 0 | .eos_token_id = 1' "$T/hf/config.json" >"$T/json/config.json"
jq '.decoder_start_token_id = 0 | .eos_token_id = 2' "$T/hf/config.json" >"$T/spm/config.json"
jq '.added_tokens += [range(100) | { id: (400 + .), content: "<extra_id_\(99 - .)>", single_word: false, lstrip: false,
    rstrip: false, normalized: false, special: true }]' "$tokenizers/hf-t5/tokenizer.json" >"$T/json/tokenizer.json"
cp "$tokenizers/hf-t5/tokenizer_config.json" "$T/json/"
cp "$tokenizers/spm-unigram.model" "$T/spm/spiece.model"

# In the folder DIR, whose tokenizer has the given options, a text has the predictions of ids with sentinels and EOS.
sentinels() { # DIR FIRST SECOND EOS OPTION...
    dir=$1 first=$2 second=$3 eos=$4 largest=$2 list=
    shift 4
    for word in the file of; do
        echo "{\"text\":\"$word\"}" | meg-preprocess -q --input - --output-prefix "$T/$word" "$@" 2>"$T/err" || cat "$T/err"
        list=$list$(od -An -v -tu2 "$T/${word}_text_document.bin" | xargs | sed "s/ $eos\$//" | tr ' ' ,),$first,
        first=$second second=$eos
    done
    echo 'the<extra_id_0>file<extra_id_1>of' | meg-eval --task fill-mask --load "$T/$dir" >"$T/text" 2>"$T/err" || cat "$T/err"
    is "$dir: sentinels in text have the ids that Hugging Face assigns, and EOS follows" "$(cat "$T/text")" \
        "$(echo "{\"ids\":[${list%,}]}" | meg-eval --task fill-mask --load "$T/$dir" 2>&1)"
    is "$dir: EOS ends the ids, but not the text" "$(jq -r '(.ids[-1] | tostring), .text[-2:]' "$T/text")" "$(printf '%s\nof' "$eos")"
    is "$dir: there is a list for each sentinel" "$(jq '.top_logprobs | length' "$T/text")" 2
    ids=$(echo 'the<extra_id_0>' | meg-eval --task fill-mask --load "$T/$dir" --top-n-logprobs 400 2>&1 | jq -c '[.top_logprobs[][].id]')
    is "$dir: the lists contain sentinels, but no padding" "$(echo "$ids" | jq --argjson last "$largest" '[length, (max >= 420), (max <= $last)] | join(" ")')" \
        '"400 true true"'
}
sentinels json 499 498 1 --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$tokenizers/hf-t5"
sentinels spm 519 518 2 --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "$tokenizers/spm-unigram.model"
echo 'no sentinel' >"$T/none"
status 'no sentinel: exit status 65' 65 meg-eval --task fill-mask --load "$T/spm" --input "$T/none"
like 'no sentinel: the message says what to write' "$(cat "$T/err")" 'the line has no mask; write <extra_id_0>, <extra_id_1> and so on'
done_testing
