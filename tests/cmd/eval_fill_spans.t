#!/bin/sh
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

refuses() { # LINE MESSAGE
    echo "$1" >"$T/bad"
    status "$1: exit status 65" 65 fill --input "$T/bad"
    like "$1: the message names the reason" "$(cat "$T/err")" "$2"
}
refuses 'no mask' 'line 1: the line has no mask; write \[MASK\]'
refuses '[MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK]' 'the line has 9 masks, but the vocabulary has only 8 sentinels'
refuses 'a b c d e f g h i j k l m n o p q [MASK]' 'line 1: the line has 18 tokens'
status 'a tokenizer without BOS and EOS: exit status 2' 2 \
    fill --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$golden/../tokenizers/hf-bert" --input "$T/bad"
like 'a tokenizer without BOS and EOS: the message says so' "$(cat "$T/err")" 'requires a tokenizer with BOS and EOS for a T5'

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
done_testing
