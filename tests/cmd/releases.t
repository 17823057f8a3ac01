#!/bin/sh
# modules: option
# --megatron-release has an effect in each command and is stored in checkpoints.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"
data=$(cd "${0%/*}/../data/releases" && pwd)

# ---- preprocessing ----
printf '{"text":"This License"}\n' >"$T/text.jsonl"
ids_as() { # RELEASE OPTION...
    release=$1
    shift
    meg-preprocess -q --input "$T/text.jsonl" --output-prefix "$T/p" --megatron-release "$release" "$@" &&
        meg-preprocess -q --decode "$T/p_text_document" --json | jq -c .ids
}
# as_llama2 COMMAND...: run COMMAND with Llama2Tokenizer
as_llama2() { "$@" --tokenizer-type Llama2Tokenizer --tokenizer-model "$data/spm.model"; }
old=$(as_llama2 ids_as 0.14)
is 'Llama2Tokenizer writes no <s> from release 0.15 on' "[1,$(as_llama2 ids_as 0.15 | tr -d '[')" "$old"
status 'an unknown release is rejected' 2 meg-preprocess --input "$T/text.jsonl" --output-prefix "$T/p" \
    --megatron-release 0.9 --tokenizer-type NullTokenizer --vocab-size 9
like 'the message lists the known releases' "$(cat "$T/err")" '0\.10.*0\.19'

# ---- the manual ----
page=$(mandoc -Tascii "${0%/*}/../../man/meg.7" 2>/dev/null | sed 's/.\x08//g')
if [ -n "$page" ]; then
    listed=$(meg-preprocess --list-options | awk -F '\t' '$1 == "megatron-release" { gsub(/[|]/, " ", $2); print $2 }')
    range="${listed%% *} to ${listed##* }"
    like 'meg(7) names the first and the last release' "$(echo "$page" | tr -s ' \n' ' ')" "are the same from $range\."
else
    skip 'meg(7) names the first and the last release' 'no mandoc'
fi

# ---- checkpoints ----
release_of() { jq -r '.options[] | select(startswith("megatron-release"))' "$1"/iter_*5/state.json; }
train --save "$T/old" --exit-interval 5 >"$T/log"
is 'a checkpoint stores the default release' "$(release_of "$T/old")" 'megatron-release = 0.10'
train --save "$T/new" --exit-interval 5 --megatron-release 0.15 >"$T/log"
is 'a checkpoint stores the release of --megatron-release' "$(release_of "$T/new")" 'megatron-release = 0.15'
status 'a run continues without the option' 0 train --load "$T/new" --save "$T/more" --exit-interval 5
is 'a continued run keeps the release of its checkpoint' "$(jq -r '.options[] | select(startswith("megatron-release"))' \
    "$T/more"/iter_0000010/state.json)" 'megatron-release = 0.15'
status 'a run continues with the same release' 0 train --load "$T/new" --megatron-release 0.15
status 'a run does not continue with another release' 2 train --load "$T/new" --megatron-release 0.10
like 'the message says what to do' "$(cat "$T/err")" \
    '--megatron-release 0.10: .*/new/iter_0000005 was saved with release 0.15; remove the option, or use --finetune'
status '--finetune accepts another release' 0 train --load "$T/new" --megatron-release 0.10 --finetune

# ---- blends ----
blend() { train --dry-run --data-path 3 "$T/ids_text_document" 7 "$T/ids_text_document" "$@"; }
# built OPTION...: print the number of samples for which the two training datasets are built
built() { blend --train-iters 100 "$@" | awk '$1 == "train" { printf "%s ", $5 }'; }
is 'a blend has the dataset sizes of the default release' "$(built)" '121 282 '
is 'a blend has the dataset sizes of 0.14' "$(built --megatron-release 0.14)" '121 282 '
is 'a larger surplus increases the dataset sizes of a blend' "$(built --megatron-release 0.14 --mid-level-dataset-surplus 0.5)" '180 420 '
status '0.14 has no --renormalize-blend-weights' 2 blend --megatron-release 0.14 --renormalize-blend-weights
like 'the message names the last release with --renormalize-blend-weights' "$(cat "$T/err")" 'requires --megatron-release 0\.10,'
status '0.10 has no --mid-level-dataset-surplus' 2 blend --mid-level-dataset-surplus 0.1
like 'the message names the first release with --mid-level-dataset-surplus' "$(cat "$T/err")" 'requires --megatron-release 0\.11 or later'
status 'a negative surplus is rejected' 2 blend --megatron-release 0.14 --mid-level-dataset-surplus -0.1

# ---- evaluation ----
awk 'length($0)' "$data/../../../LICENSE" | jq -Rc '{text: .}' >"$T/words.jsonl"
head -n 30 "$T/words.jsonl" >"$T/few.jsonl"
for release in 0.14 0.15; do
    as_llama2 meg-preprocess -q --input "$T/words.jsonl" --output-prefix "$T/w$release" --append-eod \
        --megatron-release $release
    sed '/tokenizer-type\|vocab-size\|data-path/d' "$T/conf" >"$T/words.conf"
    as_llama2 meg-train -q --config "$T/words.conf" --data-path "$T/w${release}_text_document" --save "$T/m$release" \
        --megatron-release $release >"$T/log"
done
tokens() { meg-eval --task ppl --load "$1" --input "$T/few.jsonl" | jq .tokens; }
is 'meg-eval tokenizes text as the release in the checkpoint' "$(($(tokens "$T/m0.14") - $(tokens "$T/m0.15")))" \
    "$(wc -l <"$T/few.jsonl" | tr -d ' ')"
for release in 0.14 0.15; do
    meg-convert -q --load-dir "$T/m$release" --saver hf --save-dir "$T/hf$release"
    is "a converted Hugging Face model keeps the release: $release" "$(tokens "$T/hf$release")" "$(tokens "$T/m$release")"
done
done_testing
