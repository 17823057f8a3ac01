#!/bin/sh
# modules: eval
# meg-eval with a small byte-level model and with a reference model.
. "${0%/*}/../lib.sh"
perl "${0%/*}/../tiny_gpt2.pl" "$T/hf"
mkdir "$T/ids" && cp "$T/hf/config.json" "$T/hf/model.safetensors" "$T/ids"

# jq orders nan and null below all numbers
jq_is_small='def is_small(most): fabs | . >= 0 and . < most;'
logprobs() { meg-eval --task logprobs --load "$T/hf" "$@"; }
ppl() { meg-eval --task ppl --load "$T/hf" "$@"; }

# ---- logprobs

printf '{"text":"abc"}\n{"ids":[97,98,99]}\n{"text":""}\n{"ids":[5]}\n{"text":"\\u00e9"}\n' >"$T/lines"
logprobs --input "$T/lines" >"$T/out"
is 'text and its ids have the same scores' "$(sed -n 1p "$T/out")" "$(sed -n 2p "$T/out")"
is 'each input line has an output line' "$(jq -c '[.ids,.count,(.logprobs|length)]' "$T/out" | tr '\n' ' ')" \
    '[[97,98,99],2,2] [[97,98,99],2,2] [[],0,0] [[5],0,0] [[195,169],1,1] '
is '"sum" is the sum of "logprobs"' "$(jq -c "$jq_is_small"'(.logprobs | add // 0) - .sum | is_small(1e-6)' "$T/out" | sort -u)" true
is 'standard input is the default' "$(logprobs <"$T/lines")" "$(cat "$T/out")"
is 'ids require no tokenizer' "$(echo '{"ids":[97,98,99]}' | meg-eval --task logprobs --load "$T/ids")" "$(sed -n 1p "$T/out")"
is 'scores of a line do not depend on other lines' "$(tac "$T/lines" | logprobs | tac)" "$(cat "$T/out")"
is 'a line may have one token more than the model has positions' "$(printf '{"text":"%049d"}' 0 | logprobs | jq .count)" 48
is 'one thread computes the same scores' "$(OMP_NUM_THREADS=1 meg-eval --task logprobs --load "$T/hf" --input "$T/lines")" \
    "$(cat "$T/out")"
is 'two threads compute the same scores' "$(OMP_NUM_THREADS=2 meg-eval --task logprobs --load "$T/hf" --input "$T/lines")" "$(cat "$T/out")"
is 'the probabilities of all next tokens sum to 1' "$(jq -nc 'range(257) | {ids:[72,105,.]}' | logprobs |
    jq -s "$jq_is_small"'map(.logprobs[1] | exp) | add - 1 | is_small(1e-5)')" true

# ---- most likely ids at each position

logprobs --input "$T/lines" --top-n-logprobs 257 --return-tokens >"$T/all"
is '--top-n-logprobs and --return-tokens do not change the scores' "$(jq -c 'del(.tokens, .top_logprobs)' "$T/all")" "$(jq -c . "$T/out")"
is 'each position lists the most likely ids in descending order' "$(jq -c '[(.top_logprobs | length) == .count,
    (.top_logprobs | all(length == 257 and (map(.logprob) | . == (sort | reverse))
    and (map(.id) | sort) == [range(257)]))]' "$T/all" | sort -u)" '[true,true]'
is 'the probabilities of all listed ids sum to 1' "$(jq "$jq_is_small"'.top_logprobs | all((map(.logprob | exp) | add) - 1 | is_small(1e-5))' \
    "$T/all" | sort -u)" true
is 'the scored id is listed with the same log-probability' "$(jq '. as $x | [range(.count)] |
    all(. as $i | $x.top_logprobs[$i] | map(select(.id == $x.ids[$i + 1]))[0].logprob == $x.logprobs[$i])' "$T/all" | sort -u)" true
is '--top-n-logprobs N lists N ids' "$(logprobs --input "$T/lines" --top-n-logprobs 3 --return-tokens)" \
    "$(jq -c '.top_logprobs |= map(.[:3])' "$T/all")"
is '"tokens" is the text of each id, with U+FFFD for partial characters' "$(jq -c '.tokens | map(explode)' "$T/all" | tr '\n' ' ')" \
    '[[97],[98],[99]] [[97],[98],[99]] [] [[5]] [[65533],[65533]] '
is '--return-segments is a synonym of --return-tokens' "$(logprobs --input "$T/lines" --return-segments)" \
    "$(jq -c 'del(.top_logprobs)' "$T/all")"
is '--top-n-logprobs of ids requires no tokenizer' "$(echo '{"ids":[97,98,99]}' | meg-eval --task logprobs --load "$T/ids" --top-n-logprobs 1 |
    jq -c '.top_logprobs | map(map(keys_unsorted))')" '[[["id","logprob"]],[["id","logprob"]]]'
is 'greedy generation selects the first of the listed ids' "$(printf 'Hello' | meg-generate --load "$T/hf" --greedy --tokens-to-generate 20 |
    jq -c '{ids: ([72,101,108,108,111] + .ids)}' | logprobs --top-n-logprobs 1 |
    jq -c '[.ids[5:] == (.top_logprobs[4:] | map(.[0].id)), .logprobs[4:] == (.top_logprobs[4:] | map(.[0].logprob))]')" '[true,true]'
echo '{"ids":[1,2]}' >"$T/p"
for n in -1 258 2.5; do
    status "--top-n-logprobs $n ends with 2" 2 logprobs --top-n-logprobs $n --input "$T/p"
done
status '--return-tokens without a tokenizer ends with 2' 2 meg-eval --task logprobs --load "$T/ids" --return-tokens --input "$T/p"
like '--return-tokens without a tokenizer: the message says so' "$(cat "$T/err")" '--return-tokens requires a tokenizer, and the model has none'
status '--device cuda without a GPU fails' "$(no_gpu_status)" logprobs --device cuda --input "$T/p"
status '--top-n-logprobs with --task ppl ends with 2' 2 ppl --top-n-logprobs 1 --input "$T/p"

printf '[{"text": "Hello"}]\n' >"$T/array.json"
status 'the corpus of --task ppl is no JSON array' 65 ppl --input "$T/array.json"
like 'the array is named' "$(cat "$T/err")" "$T/array.json: found a JSON array, expected JSON lines; "

refuse() { # NAME LINE WORDS
    printf "{\"ids\":[1,2]}\\n$2\\n" >"$T/p"
    status "$1 ends with 65" 65 logprobs --input "$T/p"
    like "$1: the message names the line" "$(cat "$T/err")" "$T/p: line 2: .*$3"
    is "$1: the previous line is scored" "$(jq -c .ids "$T/out")" '[1,2]'
}
refuse 'a line that is not JSON' 'abc' 'not JSON'
refuse 'an empty line' '' 'not JSON'
refuse 'an object without text' '{"prompt":"a"}' 'either "text" or "ids", found neither'
refuse 'text and ids' '{"text":"a","ids":[1]}' 'either "text" or "ids", found both'
refuse 'an unknown member' '{"ids":[1,2],"logprob":1}' 'unknown member "logprob"; known are "text", "ids"$'
refuse 'an option of generation' '{"ids":[1,2],"seed":1}' 'unknown member "seed"; known are "text", "ids"$'
refuse 'an id outside of the vocabulary' '{"ids":[257]}' '"ids"\[0\] is 257'
refuse 'a line too long' '{"text":"%050d"}' '50 tokens; with a maximum sequence length of 48, the model can score at most 49 tokens'
echo '{"text":"a"}' >"$T/p"
status 'text without a tokenizer ends with 2' 2 meg-eval --task logprobs --load "$T/ids" --input "$T/p"
status 'a full disk ends with 74' 74 sh -c 'meg-eval --task logprobs --load "$1/hf" --input "$1/lines" >/dev/full' - "$T"

# ---- ppl

for i in 1 2 3 4 5 6 7 8 9; do echo "Line $i of a text of some length, to be scored."; done >"$T/text"
n=$(wc -c <"$T/text" | tr -d ' ')
ppl --input "$T/text" >"$T/out"
is 'ppl prints the documented members' "$(jq -c keys_unsorted "$T/out")" \
    '["task","documents","tokens","windows","seq_length","overlapping_eval","loss_nats","ppl","bytes","bits_per_byte"]'
is 'ppl scores all tokens but the first' "$(jq -c '[.documents,.tokens,.bytes,.windows,.seq_length,.overlapping_eval]' "$T/out")" \
    "[1,$((n - 1)),$((n - 1)),$(((n - 1 + 47) / 48)),48,48]"
is 'with one byte per token, bits per byte equal the loss' "$(jq "$jq_is_small"'.bits_per_byte * (2 | log) - .loss_nats | is_small(1e-7)' "$T/out")" true
is 'ppl is exp(loss)' "$(jq "$jq_is_small"'.ppl / (.loss_nats | exp) - 1 | is_small(1e-7)' "$T/out")" true
is 'the loss equals that of the windows scored as lines' "$(jq -Rsc 'explode | range(0; length - 1; 48) as $i | {ids:.[$i:$i + 49]}' "$T/text" |
    logprobs | jq -s --slurpfile p "$T/out" "$jq_is_small"'(map(-.sum) | add) / (map(.count) | add) - $p[0].loss_nats |
    is_small(1e-6)')" true
is 'overlapping windows score the same number of tokens' "$(ppl --input "$T/text" --overlapping-eval 5 --seq-length 20 | jq -c '[.tokens,.bytes]')" \
    "[$((n - 1)),$((n - 1))]"
zstd -q "$T/text"
is 'compressed text has the same perplexity' "$(ppl --input "$T/text.zst")" "$(cat "$T/out")"
is 'text from standard input has the same perplexity' "$(ppl <"$T/text")" "$(cat "$T/out")"

{ echo '{"text":""}'; jq -Rc '{text:.}' "$T/text"; } >"$T/text.jsonl"
ppl --input "$T/text.jsonl" >"$T/out"
is 'each nonempty document has an end-of-document token, which has no bytes' "$(jq -c '[.documents,.tokens,.bytes]' "$T/out")" "[10,$((n - 1)),$((n - 10))]"
is 'the first document has an end, too' "$(tail -n +2 "$T/text.jsonl" | ppl | jq -c '[.documents,.tokens,.bytes]')" "[9,$((n - 1)),$((n - 10))]"
is 'other members of a corpus line are ignored' "$(jq -c '. + {url: "x", seed: -1}' "$T/text.jsonl" | ppl)" "$(cat "$T/out")"
{ printf '\357\273\277\n \r\n'; sed 's/^/ /; 3s/$/\n/' "$T/text.jsonl"; echo; } >"$T/marked.jsonl"
is 'a byte order mark and empty lines are ignored' "$(ppl --input "$T/marked.jsonl")" "$(cat "$T/out")"
meg-preprocess -q --input "$T/text.jsonl" --tokenizer-type GPT2BPETokenizer --vocab-file "$T/hf/vocab.json" \
    --merge-file "$T/hf/merges.txt" --append-eod --output-prefix "$T/d"
is 'a dataset has the perplexity of its text' "$(ppl --data-path "$T/d_text_document")" "$(jq -c 'del(.bytes, .bits_per_byte)' "$T/out")"
is 'a dataset requires no tokenizer' "$(meg-eval --task ppl --load "$T/ids" --data-path "$T/d_text_document")" \
    "$(ppl --data-path "$T/d_text_document")"

printf a >"$T/p"
status 'a text of one token ends with 65' 65 ppl --input "$T/p"
like 'a text of one token: the message says so' "$(cat "$T/err")" "$T/p: 1 token;"
status 'an empty text ends with 65' 65 ppl --input /dev/null
printf 'ab\377' >"$T/p"
status 'a text that is not UTF-8 ends with 65' 65 ppl --input "$T/p"
like 'not UTF-8: the message has the offset' "$(cat "$T/err")" "$T/p: invalid UTF-8 at byte offset 2"
printf '{"text":"a"}\nb\n' >"$T/p"
status 'JSON lines followed by text end with 65' 65 ppl --input "$T/p"
like 'JSON lines followed by text: the message has the line' "$(cat "$T/err")" "$T/p: line 2: not JSON"
printf '{"text":"1 2 300"}\n' | meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 1000 --output-prefix "$T/big"
status 'a dataset with ids outside of the vocabulary ends with 65' 65 ppl --data-path "$T/big_text_document"
like 'ids outside of the vocabulary: the message has the location' "$(cat "$T/err")" "$T/big_text_document.bin: the id at offset 2 of sequence 0 .both counted from 0. is 300; the vocabulary of the model has ids 0 to 256"
is 'ids outside of the vocabulary: nothing is printed' "$(cat "$T/out")" ''
status 'a missing dataset ends with 66' 66 ppl --data-path "$T/none"
status 'a window longer than the model ends with 2' 2 ppl --seq-length 49 --input "$T/text"
status 'a stride larger than the window ends with 2' 2 ppl --seq-length 10 --overlapping-eval 11 --input "$T/text"
status '--data-path with --task logprobs ends with 2' 2 logprobs --data-path "$T/d_text_document"
status 'text with a dataset ends with 2' 2 ppl --input "$T/text" --data-path "$T/d_text_document"
status 'an unknown task ends with 2' 2 meg-eval --task zero --load "$T/hf"
status 'a missing --task ends with 2' 2 meg-eval --load "$T/hf"

# ---- dtype of weights and activations

for dtype in bf16 fp16; do
    meg-convert -q --load-dir "$T/hf" --save-dir "$T/$dtype" --params-dtype "$dtype"
    meg-convert -q --load-dir "$T/$dtype" --save-dir "$T/$dtype-rounded" --saver native --params-dtype fp32
done
echo '{"text":"The quick brown fox jumps over the lazy dog"}' >"$T/fox"
fox() { meg-eval --task logprobs --input "$T/fox" --load "$@"; }
# mean_error A B: print the mean absolute difference of the log-probabilities of two outputs
mean_error() { printf '%s\n' "$1" "$2" | jq -s '[.[0].logprobs, .[1].logprobs] | transpose | map(.[0] - .[1] | fabs) | add / length'; }
f32=$(fox "$T/hf")
is '--params-dtype fp32 is the default for an f32 checkpoint' "$(fox "$T/hf" --params-dtype fp32)" "$f32"
# The relative rounding error is at most 2^-8 in bf16 and 2^-11 in fp16, and log-probabilities are about -8.
for dtype in bf16 fp16; do
    half=$(fox "$T/hf" --$dtype)
    is "--params-dtype $dtype is equivalent to --$dtype" "$(fox "$T/hf" --params-dtype $dtype)" "$half"
    is "the dtype of the checkpoint is the default: $dtype" "$(fox "$T/$dtype")" "$half"
    is "--params-dtype fp32 computes in f32 with the weights of a $dtype checkpoint" "$(fox "$T/$dtype" --params-dtype fp32)" \
        "$(fox "$T/$dtype-rounded")"
    error=$(mean_error "$f32" "$half")
    is "$dtype: the mean error of log-probabilities ($error) is that of rounding" \
        "$(echo "$error" | jq --arg dtype $dtype '. > 1e-4 and . < (if $dtype == "bf16" then 0.04 else 0.005 end)')" true
    is "$dtype: the listed log-probabilities contain those of the tokens" "$(fox "$T/$dtype" --top-n-logprobs 257 | jq -c '. as $x |
        [range(.count)] | all(. as $i | $x.top_logprobs[$i] | map(select(.id == $x.ids[$i + 1]))[0].logprob == $x.logprobs[$i])')" true
done
is 'perplexity is computed in the dtype of the checkpoint' "$(meg-eval --task ppl --load "$T/bf16" --input "$T/fox")" \
    "$(meg-eval --task ppl --load "$T/hf" --bf16 --input "$T/fox")"
status '--bf16 with --fp16 ends with 2' 2 fox "$T/hf" --bf16 --fp16
like '--bf16 with --fp16: the message names both' "$(cat "$T/err")" '--fp16 cannot be combined with --bf16'
status '--bf16 with another --params-dtype ends with 2' 2 fox "$T/hf" --bf16 --params-dtype fp32
like '--bf16 with another --params-dtype: the message names both' "$(cat "$T/err")" '--params-dtype fp32: contradicts --bf16'
status 'an unknown --params-dtype ends with 2' 2 fox "$T/hf" --params-dtype f64

# ---- reference numbers; the tolerance is ten times the error of a float32 run

ref=$golden/models/gpt2-tiny
jq -c '.generate[] | {ids: (.prompt + .greedy_tokens)}' "$ref/expected.json" |
    meg-eval --task logprobs --load "$ref" >"$T/out"
is 'log-probabilities of gpt2-tiny equal the reference' "$(jq -c --slurpfile want "$ref/expected.json" -n "$jq_is_small"'
    [inputs] as $got | ($want[0].f32_vs_f64_output_max_abs.token_loss * 10) as $tolerance |
    [range($got | length)] | map($got[.].count == 31 and
    ([$got[.].logprobs, $want[0].generate[.].prompt_and_output_logprobs] | transpose |
    all(.[0] - .[1] | is_small($tolerance))))' "$T/out")" '[true,true]'
done_testing
