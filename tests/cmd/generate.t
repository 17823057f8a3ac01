#!/bin/sh
# modules: infer
# meg-generate with a small byte-level model and with a reference model.
. "${0%/*}/../lib.sh"
perl "${0%/*}/../tiny_gpt2.pl" "$T/hf"

# jq orders nan and null below all numbers
jq_is_small='def is_small(most): fabs | . >= 0 and . < most;'
generate() { meg-generate --load "$T/hf" --tokens-to-generate 6 "$@"; }

# ---- prompts and replies

out=$(printf 'Hello\n{"prompt":"Hello"}\n{"ids":[72,101,108,108,111]}\n' | generate --greedy)
is 'a line, a JSON string and ids are the same prompt' "$(echo "$out" | uniq -c | sed 's/^ *//; s/ .*//')" 3
is 'a reply has text, ids and finish' "$(echo "$out" | head -n 1 | jq -c keys_unsorted)" '["text","ids","finish"]'
out=$(printf 'Hello' | generate --greedy --return-log-probs)
is '--return-log-probs prints one log-probability per token' "$(echo "$out" | jq -c '[(.ids|length),(.logprobs|length),.finish]')" \
    '[6,6,"length"]'
ids=$(echo "$out" | jq -c .ids)
is 'meg-eval computes the same log-probabilities' "$(echo "$ids" |
    jq -c '{ids:([72,101,108,108,111]+.)}' | meg-eval --task logprobs --load "$T/hf" | jq -c --argjson g "$out" \
    "$jq_is_small"'[.logprobs[4:], $g.logprobs] | transpose | [length, all(.[0] - .[1] | is_small(1e-5))]')" '[6,true]'
printf 'Hello' | generate --temperature 1.5 --top-n-logprobs 257 --return-tokens --return-log-probs >"$T/all"
is '--top-n-logprobs lists the sampled id with the same log-probability' "$(jq -c '. as $x |
    [(.top_logprobs | length), ([range(6)] | all(. as $i | $x.top_logprobs[$i] | map(select(.id == $x.ids[$i]))[0].logprob ==
    $x.logprobs[$i]))]' "$T/all")" '[6,true]'
is '--top-n-logprobs and --return-tokens do not change the sampled ids' "$(jq -c 'del(.tokens, .top_logprobs)' "$T/all")" \
    "$(printf 'Hello' | generate --temperature 1.5 --return-log-probs)"
is '--return-tokens prints the text of each token' "$(jq -c '[(.tokens | length), (.tokens | all(type == "string")),
    (.tokens | tojson) == (.top_logprobs as $t | [.ids | to_entries[] | . as $e | $t[$e.key][] | select(.id == $e.value).token] | tojson)]' "$T/all")" \
    '[6,true,true]'
is 'an empty line begins a document' "$(printf '\n' | generate --greedy)" "$(echo '{"ids":[256]}' | generate --greedy)"
is 'an empty input produces no output' "$(generate </dev/null)" ''
echo Hello >"$T/p"
is '--sample-input-file reads prompts from a file' "$(generate --greedy --sample-input-file "$T/p" | jq -c .ids)" "$ids"
is 'a line may end with \r\n' "$(printf 'Hello\r\n' | generate --greedy | jq -c .ids)" "$ids"
is '--format text prints the prompt and its continuation' "$(printf 'Hello\n{"prompt":"Hello"}\n' | generate --greedy --format text)" \
    "$(printf 'Hello\nHello\n' | generate --greedy | jq -r '"Hello" + .text')"
seq 200 | generate --temperature 2 >"$T/out"
ok 'replies are UTF-8 for any sampled bytes' iconv -f UTF-8 -t UTF-8 "$T/out"
ok 'replies are JSON for any sampled bytes' jq -e . "$T/out"
like 'invalid bytes are replaced by U+FFFD' "$(jq -r .text "$T/out")" "$(printf '\357\277\275')"

meg-convert -q --load-dir "$T/hf" --save-dir "$T/native"
is 'a converted checkpoint generates the same with the tokenizer stored in it' "$(printf 'Hello\n\n' | meg-generate --load "$T/native" --return-log-probs)" \
    "$(printf 'Hello\n\n' | meg-generate --load "$T/hf" --return-log-probs)"

# ---- sampling

for how in --greedy '--top_k 7' '--top_p 0.8' '--temperature 1.5 --seed 7'; do
    seq 20 | generate $how --tokens-to-generate 30 --max-batch-size 1 --return-log-probs >"$T/one"
    seq 20 | generate $how --tokens-to-generate 30 --max-batch-size 7 --return-log-probs >"$T/seven"
    ok "$how: replies do not depend on the batch" cmp "$T/one" "$T/seven"
    isnt "$how: different prompts get different replies" "$(head -n 1 "$T/one")" "$(tail -n 1 "$T/one")"
done
seq 3 | OMP_NUM_THREADS=1 meg-generate --load "$T/hf" --return-log-probs >"$T/one"
seq 3 | OMP_NUM_THREADS=2 meg-generate --load "$T/hf" --return-log-probs >"$T/two"
ok 'replies do not depend on the number of threads' cmp "$T/one" "$T/two"
is 'each prompt gets a reply' "$(wc -l <"$T/two" | tr -d ' ')" 3
isnt 'equal prompts are sampled differently' "$(echo a | generate)" "$(printf 'a\na\n' | generate | tail -n 1)"
isnt 'other seeds sample differently' "$(echo a | generate)" "$(echo a | generate --seed 2)"
is '--random-seed is a synonym of --seed' "$(echo a | generate --random-seed 2)" "$(echo a | generate --seed 2)"
echo a | generate --seed -1 >"$T/out" 2>"$T/err"
seed=$(sed -n 's/.*--seed \([0-9]*\) to repeat this run$/\1/p' "$T/err")
is '--seed -1 prints the seed it uses' "$(echo a | generate --seed "$seed")" "$(cat "$T/out")"
is '--top_k 1 and --temperature 0 are greedy' "$(echo a | generate --top_k 1; echo a | generate --temperature 0)" \
    "$(echo a | generate --greedy; echo a | generate --greedy)"

for dtype in bf16 fp16; do
    seq 20 | generate --$dtype --temperature 1.5 --max-batch-size 1 --return-log-probs >"$T/one"
    seq 20 | generate --$dtype --temperature 1.5 --max-batch-size 7 --return-log-probs >"$T/seven"
    ok "--$dtype: replies do not depend on the batch" cmp "$T/one" "$T/seven"
    meg-convert -q --load-dir "$T/hf" --save-dir "$T/$dtype" --params-dtype $dtype
    ok "the dtype of the checkpoint is the default: $dtype" sh -c 'seq 20 | meg-generate --load "$1" --tokens-to-generate 6 \
        --temperature 1.5 --return-log-probs | cmp - "$2"' - "$T/$dtype" "$T/one"
    ok "--params-dtype fp32 overrides the dtype of the checkpoint: $dtype" sh -c '! seq 20 | meg-generate --load "$1" \
        --tokens-to-generate 6 --temperature 1.5 --return-log-probs --params-dtype fp32 | cmp - "$2"' - "$T/$dtype" "$T/one"
done
status '--bf16 with --fp16 ends with 2' 2 generate --bf16 --fp16

# ---- options of a line

is 'max_tokens of a line overrides --tokens-to-generate' "$(printf '%s\n' '{"prompt":"a","max_tokens":3}' a \
    '{"prompt":"a","max_tokens":9}' | generate | jq -c '.ids | length' | tr '\n' ' ')" '3 6 9 '
is 'sampling members of a line act as the options of the same name' "$(printf '%s\n' '{"prompt":"a","temperature":0}' \
    '{"prompt":"a","top_k":1}' '{"prompt":"a","top_k":5}' '{"prompt":"a","top_p":0.6}' '{"prompt":"a","temperature":1.7}' |
    generate)" "$(echo a | generate --greedy; echo a | generate --greedy; printf 'a\na\na\n' | generate --top_k 5 | sed -n 3p
    printf 'a\na\na\na\n' | generate --top_p 0.6 | sed -n 4p; printf 'a\na\na\na\na\n' | generate --temperature 1.7 | sed -n 5p)"
for greedy in '--temperature 0 --top_k 5' '--temperature 0 --top_p 0.5' '--top_k 1' --greedy; do
    # shellcheck disable=SC2086
    is "a JSON line is greedy with $greedy, as plain text is" "$(echo '{"prompt":"a"}' | generate $greedy)" \
        "$(echo a | generate --greedy)"
done
is 'a line with a temperature overrides --greedy' "$(echo '{"prompt":"a","temperature":1.7}' | generate --greedy)" \
    "$(echo a | generate --temperature 1.7)"
is 'a line with a seed is sampled as the first prompt with --seed' \
    "$(printf 'b\n{"prompt":"a","seed":7}\n{"prompt":"a","seed":7}\n' | generate | sed 1d | uniq -c | sed 's/^ *//')" \
    "2 $(echo a | generate --seed 7)"
jq -nc 'range(20) | {prompt: "\(.)", seed: ., max_tokens: (3 + . % 5 * 9)} +
    [{}, {top_k: 7}, {top_p: 0.8}, {temperature: 1.5, stop: ["e", "9"]}][. % 4]' >"$T/lines"
generate --max-batch-size 1 --return-log-probs --input "$T/lines" >"$T/one"
generate --max-batch-size 7 --return-log-probs --input "$T/lines" >"$T/seven"
ok 'replies to lines with options do not depend on the batch' cmp "$T/one" "$T/seven"
is 'replies to lines with a seed do not depend on the order of the lines' "$(tac "$T/lines" | generate --return-log-probs | tac)" "$(cat "$T/one")"

sampled='{"prompt":"Hello","seed":2,"top_k":20,"max_tokens":20}'
echo "$sampled" | generate >"$T/full"
stop=$(jq -r '.text | match("[ -~]{2}").string' "$T/full")
is 'the generated text contains a stop string to search for' "${#stop}" 2
jq -c --arg s "$stop" '.ids |= .[:index($s | explode) + 2] | .text |= split($s)[0] | .finish = "stop"' "$T/full" >"$T/cut"
isnt 'the stop string is not at the end of the text' "$(cat "$T/cut")" "$(jq -c '.finish = "stop"' "$T/full")"
for s in '$s' '["none", $s, "\u00e9"]'; do
    is "the text ends before a stop string, the ids with its last id: $s" \
        "$(echo "$sampled" | jq -c --arg s "$stop" ". + {stop: $s}" | generate)" "$(cat "$T/cut")"
done
is 'a stop string that is not generated changes nothing' "$(echo "$sampled" | jq -c '. + {stop: ["Hello", "none"]}' | generate)" \
    "$(cat "$T/full")"
is '--format text ends at a stop string' "$(echo "$sampled" | jq -c --arg s "$stop" '., . + {stop: $s}' | generate --format text)" \
    "$(jq -r '"Hello" + .text' "$T/full" "$T/cut")"

# ---- the end of a continuation

seq 400 | generate --temperature 1.5 --tokens-to-generate 47 >"$T/out"
is 'the end-of-document id ends a continuation and is not printed' "$(jq -r '[.finish, (.ids | index(256))] | @csv' "$T/out" | sort -u)" \
    "$(printf '"length",\n"stop",')"
# Use an id that greedy decoding generates as eos_token_id, in either file of the directory and in a converted
# checkpoint.
cp -R "$T/hf" "$T/ends"
printf Hello | generate --greedy >"$T/full"
third=$(jq -c '.ids[2]' "$T/full")
two=$(jq -c '{n: (.ids | index(.[2])), finish: "stop"}' "$T/full")
printf '{"eos_token_id":[256,%s]}' "$third" >"$T/ends/generation_config.json"
for from in ends ends-native; do
    is "an eos_token_id of generation_config.json ends a continuation: $from" \
        "$(printf Hello | meg-generate --load "$T/$from" --greedy | jq -c '{n: (.ids|length), finish}')" "$two"
    [ $from = ends-native ] || meg-convert -q --load-dir "$T/ends" --save-dir "$T/ends-native"
done
rm "$T/ends/generation_config.json"
jq -c ".eos_token_id = [256,$third]" "$T/hf/config.json" >"$T/ends/config.json"
is 'an eos_token_id of config.json ends a continuation' \
    "$(printf Hello | meg-generate --load "$T/ends" --greedy | jq -c '{n: (.ids|length), finish}')" "$two"
is 'a prompt that leaves one position is continued by one token' "$(printf '%047d' 0 | generate --greedy | jq -c '[(.ids|length),.finish]')" '[1,"length"]'

# ---- interactive use

mkfifo "$T/in" "$T/back"
timeout 60 meg-generate --load "$T/hf" --greedy --tokens-to-generate 6 <"$T/in" >"$T/back" &
exec 3>"$T/in" 4<"$T/back"
for i in 1 2; do
    echo Hello >&3
    read -r line <&4
    is "a line gets its reply before the next line is written ($i)" "$(echo "$line" | jq -c .ids)" "$ids"
done
exec 3>&- 4<&-
wait

# ---- errors

printf 'Hello\n{"prompt":3}\nHello\n' >"$T/p"
status 'an invalid line exits with status 65' 65 generate --greedy --input "$T/p"
is 'the message names the line' "$(cat "$T/err")" "meg-generate: $T/p: line 2: \"prompt\" is not a string"
is 'the lines before an invalid one get replies' "$(jq -c .ids "$T/out")" "$ids"
refuse() { # NAME LINE WORDS
    printf "$2\\n" >"$T/p"
    status "$1 ends with 65" 65 generate --input "$T/p"
    like "$1: the message names the line" "$(cat "$T/err")" "$T/p: line 1: .*$3"
}
refuse 'a truncated JSON object' '{"prompt":"a"' 'not JSON'
refuse 'an object without a prompt' '{"text":"a"}' 'either "prompt" or "ids", found neither'
refuse 'an unknown member' '{"prompt":"a","max_token":3}' \
    'unknown member "max_token"; known are "prompt", "ids", "max_tokens", "stop", "temperature", "top_k", "top_p", "seed"$'
refuse 'max_tokens below 1' '{"prompt":"a","max_tokens":0}' '"max_tokens" is 0; it must be an integer from 1 to 2147483647$'
refuse 'max_tokens of another type' '{"prompt":"a","max_tokens":"3"}' '"max_tokens" is "3"; it must be an integer'
refuse 'a temperature out of range' '{"prompt":"a","temperature":101}' '"temperature" is 101; it must be a number from 0 \(greedy\) to 100$'
refuse 'a temperature of another type' '{"prompt":"a","temperature":"1"}' '"temperature" is "1"; it must be a number'
refuse 'top_k below 0' '{"prompt":"a","top_k":-1}' '"top_k" is -1; it must be an integer from 0 to the size of the vocabulary$'
refuse 'top_k above the vocabulary' '{"prompt":"a","top_k":258}' 'top_k 258: must be from 0 to 257'
refuse 'top_k of another type' '{"prompt":"a","top_k":2.5}' '"top_k" is 2.5; it must be an integer'
refuse 'top_p out of range' '{"prompt":"a","top_p":1.5}' '"top_p" is 1.5; it must be a number from 0 to 1$'
refuse 'top_p of another type' '{"prompt":"a","top_p":[1]}' '"top_p" is \[1\]; it must be a number'
refuse 'top_k and top_p of a line' '{"prompt":"a","top_p":0.5,"top_k":5}' 'top_k 5 and --top_p 0.5: use only one of them'
refuse 'a seed out of range' '{"prompt":"a","seed":-1}' '"seed" is -1; it must be an integer from 0 to 4294967295$'
refuse 'a seed of another type' '{"prompt":"a","seed":1.5}' '"seed" is 1.5; it must be an integer'
refuse 'an empty stop string' '{"prompt":"a","stop":""}' '"stop" is ""; it must be a string or an array of strings, none of them empty$'
refuse 'stop of another type' '{"prompt":"a","stop":["a",1]}' '"stop" is \["a",1\]; it must be a string or an array'
refuse 'bytes that are not UTF-8' 'ab\377' 'invalid UTF-8 at byte offset 2'
refuse 'an id outside of the vocabulary' '{"ids":[0,257]}' '"ids"\[1\] is 257; the vocabulary of the model has ids 0 to 256'
refuse 'a prompt as long as the model' '%048d' 'the prompt has 48 tokens; it must be shorter than the maximum sequence length of the model, 48'
echo a >"$T/p"
status '--device cuda without a GPU fails' "$(no_gpu_status)" generate --device cuda --input "$T/p"
status 'top-k with top-p ends with 2' 2 generate --top_k 5 --top_p 0.5 --input "$T/p"
status 'top-k above the vocabulary size ends with 2' 2 generate --top_k 258 --input "$T/p"
status '--tokens-to-generate 0 ends with 2' 2 meg-generate --load "$T/hf" --tokens-to-generate 0 --input "$T/p"
status '--top-n-logprobs above the vocabulary size ends with 2' 2 generate --top-n-logprobs 258 --input "$T/p"
status '--top-n-logprobs with --format text ends with 2' 2 generate --format text --top-n-logprobs 1 --input "$T/p"
status '--max-batch-size 0 ends with 2' 2 generate --max-batch-size 0 --input "$T/p"
status '--max-batch-size above its limit ends with 2' 2 generate --max-batch-size 1000000000000 --input "$T/p"
status 'a missing --load ends with 2' 2 meg-generate --input "$T/p"
status 'a missing model ends with 66' 66 meg-generate --load "$T/none" --input "$T/p"
status 'a missing iteration ends with 66' 66 meg-generate --load "$T/native" --ckpt-step 7 --input "$T/p"
printf '\001' | dd of="$(echo "$T"/native/release/model-0-*)" bs=1 seek=5000 conv=notrunc 2>"$T/err"
status 'a flipped bit in the weights ends with 65' 65 meg-generate --load "$T/native" --input "$T/p"
status 'a missing prompt file ends with 66' 66 generate --input "$T/none"
status "a tokenizer larger than the model's vocabulary ends with 2" 2 generate --tokenizer-type NullTokenizer --vocab-size 5000 --input "$T/p"
like "a tokenizer larger than the model's vocabulary: the message has both sizes" "$(cat "$T/err")" 'tokenizer .* has 5001 tokens, but the vocabulary of the model has only 257'
status 'a full disk ends with 74' 74 sh -c 'meg-generate --load "$1/hf" --input "$1/p" >/dev/full' - "$T"
mkdir "$T/ids" && cp "$T/hf/config.json" "$T/hf/model.safetensors" "$T/ids"
status 'text without a tokenizer ends with 2' 2 meg-generate --load "$T/ids" --input "$T/p"
echo '{"ids":[1],"stop":"a"}' >"$T/line"
status 'a stop string without a tokenizer ends with 2' 2 meg-generate --load "$T/ids" --input "$T/line"
like 'a stop string without a tokenizer: the message says so' "$(cat "$T/err")" "$T/line: line 1: \"stop\" requires a tokenizer"
null='--tokenizer-type NullTokenizer --vocab-size 100'
printf '%s\n' '{"ids":[5,200]}' '{"ids":[5]}' >"$T/line"
# shellcheck disable=SC2086
{
    status 'a prompt with an id that the tokenizer lacks has a JSON reply' 0 generate $null --input "$T/line"
    is 'the JSON reply has the text of the continuation' "$(jq -c '(.text | ltrimstr(" ")) == (.ids | join(" "))' "$T/out")" \
        "$(printf 'true\ntrue')"
    status 'a prompt with an id that the tokenizer lacks cannot be printed as text' 65 generate $null --format text --input "$T/line"
}
status '--format text without a tokenizer ends with 2' 2 meg-generate --load "$T/ids" --format text --input "$T/p"
is 'ids are continued without a tokenizer' "$(echo '{"ids":[72,101,108,108,111]}' |
    meg-generate --load "$T/ids" --greedy --tokens-to-generate 6)" "{\"ids\":$ids,\"finish\":\"length\"}"
(yes a | { timeout 60 meg-generate --load "$T/hf" --tokens-to-generate 2; echo $? >"$T/status"; }) 2>"$T/err" |
    head -n 1 >"$T/out"
is 'a closed output pipe ends the program by SIGPIPE' "$(cat "$T/status")" 141
is 'SIGPIPE prints no message' "$(cat "$T/err")" ''

# ---- reference numbers; the tolerance is ten times the error of a float32 run

ref=$golden/models/gpt2-tiny
jq -c '.generate[] | {ids: .prompt}' "$ref/expected.json" |
    meg-generate --load "$ref" --greedy --tokens-to-generate 26 --return-log-probs >"$T/out"
is 'greedy continuations of gpt2-tiny equal the reference' "$(jq -c .ids "$T/out")" "$(jq -c '.generate[].greedy_tokens' "$ref/expected.json")"
is 'log-probabilities of these continuations equal the reference' "$(jq -c --slurpfile want "$ref/expected.json" -n "$jq_is_small"'
    [inputs.logprobs] as $got | ($want[0].f32_vs_f64_output_max_abs.token_loss * 10) as $tolerance |
    [range($got | length)] | map([$got[.], $want[0].generate[.].greedy_logprobs] | transpose |
    [length, all(.[0] - .[1] | is_small($tolerance))])' "$T/out")" '[[26,true],[26,true]]'
done_testing
