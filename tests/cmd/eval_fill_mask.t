#!/bin/sh
# modules: eval
# meg-eval --task fill-mask with a BERT that learns which number belongs to a letter.
. "${0%/*}/../lib.sh"
. "${0%/*}/../facts.sh"
cat >>"$T/conf" <<'end'
model = bert
num-layers = 1
mask-prob = 0.3
train-iters = 200
lr = 1e-2
end
ok 'a BERT is trained' meg-train -q --config "$T/conf" --save "$T/bert"
fill() { meg-eval --task fill-mask --load "$T/bert" "$@"; }

# ---- predictions

cat >"$T/lines" <<'end'
C is [MASK].[SEP]C is [MASK].
{"text": "b is [MASK]. [SEP] B is 1.", "answer": "1"}
end
fill <"$T/lines" >"$T/out"
is 'text: masks are filled, in plain text and in JSON' "$(jq -r .text "$T/out")" "$(printf 'c is 2. [SEP] c is 2.\nb is 1. [SEP] b is 1.')"
is 'ids: [CLS] and [SEP] begin and end the line' "$(jq -c '.ids | [.[0], .[5], .[10]]' "$T/out")" "$(printf '[2,3,3]\n[2,3,3]')"
is 'top_logprobs: there is a list of 5 tokens for each mask' "$(jq -c '.top_logprobs | map(length)' "$T/out")" "$(printf '[5,5]\n[5]')"
is 'the first token of a list is the one in the text' "$(jq -r '.top_logprobs[0][0].token' "$T/out")" "$(printf '2\n1')"
ok 'a list is in order of decreasing probability' jq -se 'map(.top_logprobs[] | map(.logprob) | . == (sort | reverse)) | all' "$T/out"

jq -c '{ids: (.ids | .[3] = 4 | .[8] = 4)}' "$T/out" | head -n 1 >"$T/ids"
is 'ids with masks have the predictions of the text' "$(fill --input "$T/ids")" "$(head -n 1 "$T/out")"
is '--top-n-logprobs is the length of a list' "$(fill --top-n-logprobs 2 <"$T/lines" | jq -c '.top_logprobs | map(length)')" \
    "$(printf '[2,2]\n[2]')"
is '--top-n-logprobs 0 omits the lists' "$(fill --top-n-logprobs 0 <"$T/lines" | jq -c '[has("text"), has("top_logprobs")]' | uniq)" '[true,false]'
is '--return-tokens prints the tokens of ids' "$(fill --return-tokens --input "$T/ids" | jq -c '.tokens[:4]')" '["[CLS]","c","is","2"]'
echo 'A is [MASK].' | fill --top-n-logprobs 502 >"$T/all"
ok 'the probabilities of all tokens sum to 1' jq -e '.top_logprobs[0] | map(.logprob | exp) | add - 1 | fabs < 1e-5' "$T/all"
meg-convert -q --load-dir "$T/bert" --save-dir "$T/hf" 2>"$T/err"
is 'a Hugging Face model fills the masks alike' "$(meg-eval --task fill-mask --load "$T/hf" --input "$T/lines" | jq -r .text)" \
    "$(jq -r .text "$T/out")"
echo 'the [MASK] work' | fill --tokenizer-type HuggingFaceTokenizer --tokenizer-model tests/data/tokenizers/hf-bert >"$T/out"
is 'a tokenizer.json that adds [CLS] and [SEP] adds them once' "$(jq -c '[.ids | .[0], .[-1], (map(select(. == 2 or . == 3)) | length)]' "$T/out")" \
    '[2,3,2]'
echo 'the [MASK] working' | fill --tokenizer-type HuggingFaceTokenizer --tokenizer-model tests/data/tokenizers/hf-bert --return-tokens >"$T/out"
is 'tokens of a tokenizer.json are spelled as in the vocabulary' "$(jq -c '[.tokens, .top_logprobs[][].token] | flatten | map(select(startswith(" ")))' "$T/out") \
$(jq -r '.tokens[0]' "$T/out")" '[] [CLS]'
cp -r tests/data/tokenizers/hf-bert "$T/words"
jq -c '.pre_tokenizer = {type: "WhitespaceSplit"} | .added_tokens |= map(select(.content != "[MASK]"))' \
    tests/data/tokenizers/hf-bert/tokenizer.json >"$T/words/tokenizer.json"
echo 'the [MASK] work' | fill --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$T/words" >"$T/out" 2>"$T/err"
is 'a mask that the tokenizer encodes as an unknown word is found' "$(jq '.top_logprobs | length' "$T/out") $(cat "$T/err")" '1 '
mkfifo "$T/pipe"
fill --input "$T/pipe" >"$T/flushed" &
exec 3>"$T/pipe"
head -n 1 "$T/lines" >&3
ok 'each line is flushed' until_true 20 grep -q 'c is 2. \[SEP\] c is 2.' "$T/flushed"
exec 3>&-
wait

# ---- input that is refused

refuses() { # NAME STATUS MESSAGE LINE [OPTION...]
    name=$1 want=$2 message=$3
    printf '%s\n' "$4" >"$T/in"
    shift 4
    status "$name: exit status $want" "$want" fill --input "$T/in" "$@"
    like "$name: the message names the reason" "$(cat "$T/err")" "$message"
}
refuses 'a line without mask' 65 '/in: line 1: the line has no mask; write \[MASK\] in place of each token to predict' 'A is 0.'
refuses 'a line that is too long' 65 '/in: line 1: the line has 17 tokens, including those that begin and end it; the maximum .* is 16' \
    '[MASK] 0 0 0 0 0 0 0 0 0 0 0 0 0 0'
refuses 'invalid JSON' 65 '/in: line 1: not JSON' '{"text":"[MASK]"'
refuses 'JSON without text' 65 '/in: line 1: expected a JSON object with either "text" or "ids", found neither' '{"line":"[MASK]"}'
refuses 'an id that is too large' 65 '/in: line 1: "ids"\[1\] is 502; the vocabulary of the model has ids 0 to 501' '{"ids":[4,502]}'
refuses 'invalid UTF-8' 65 '/in: line 1: .*UTF-8' "$(printf '[MASK] \377')"
refuses '--data-path' 2 '^meg-eval: --data-path requires --task ppl' '' --data-path "$T/facts_text_sentence"
refuses '--seq-length' 2 '^meg-eval: --seq-length and --overlapping-eval require --task ppl' '' --seq-length 8
refuses 'too many --top-n-logprobs' 2 '^meg-eval: --top-n-logprobs 503: must be from 0 to 502' '[MASK]' --top-n-logprobs 503
refuses 'a tokenizer without mask' 2 'requires a tokenizer with a mask token, and this one has none' '[MASK]' \
    --tokenizer-type NullTokenizer --vocab-size 400
mkdir "$T/bare"
cp "$T/hf/config.json" "$T/hf"/*.safetensors "$T/bare"
refuses 'no tokenizer' 2 'fill-mask requires a tokenizer, and the model has none; specify one with' '[MASK]' --load "$T/bare"
perl "${0%/*}/../tiny_gpt2.pl" "$T/gpt"
refuses 'a GPT' 2 'a GPT model predicts the next token, not masked tokens; use a BERT or T5 model' '[MASK]' --load "$T/gpt"
status 'an input file that is missing: exit status 66' 66 fill --input "$T/nowhere"
done_testing
