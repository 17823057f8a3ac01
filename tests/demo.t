#!/bin/sh
# Run a copy of the recipe of 'make demo', with a model that trains in seconds.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
. tests/demo.sh
mkdir "$T/text/.hidden"

printf 'tab\there, a "quote", a \\ and \377 what is not UTF-8\n' >"$T/text/odd.txt"
printf 'hidden\n' | tee "$T/text/.hidden/file" >"$T/text/.file"
printf 'a\0b' >"$T/text/binary"

printf 'too little\n' >"$T/short.txt"
is 'a missing corpus is reported' "$(recipe CORPUS="$T/nowhere" 2>&1 | grep -o 'CORPUS: .*/nowhere does not exist')" \
    "CORPUS: $T/nowhere does not exist"
is 'an unknown model is reported' "$(recipe MODEL=gtp 2>&1 | grep -o 'MODEL: .*')" \
    'MODEL: gtp is not known; known are bert gpt t5.  Stop.'
is 'too little text is reported' "$(recipe CORPUS="$T/short.txt" 2>&1 | grep -o 'CORPUS has 1 documents')" \
    'CORPUS has 1 documents'

ok 'the recipe runs from text to samples' recipe
screen=$(sed -n '/validation loss/,$p' "$T/.out")
like 'the last lines have the validation loss before and after' "$screen" 'validation loss [0-9.]+ before training, [0-9.]+ after 60 iterations'
for file in gpt/eval.json gpt/samples.txt gpt/loss.png gpt/log gpt/metrics.jsonl vocab.json tokenizer.json; do
    ok "there is a file $file" test -s "$T/out/$file"
    like "the last lines name $file" "$screen" "$file"
done
is 'tabs, quotes and backslashes are preserved' "$(jq -r .text "$T/out/corpus.jsonl" | grep tab)" "$(printf 'tab\there, a "quote", a \\ and  what is not UTF-8')"
is 'hidden and binary files are omitted' "$(jq -r .text "$T/out/corpus.jsonl" | grep -cxE 'hidden|a.?b')" 0
is 'each document is in one of the two parts' "$(cat "$T/out/train.jsonl" "$T/out/valid.jsonl" | wc -l)" \
    "$(wc -l <"$T/out/corpus.jsonl")"
ok 'the validation loss falls' jq -se 'map(select(.split == "valid")) | first.lm_loss - last.lm_loss > 0.5' "$T/out/gpt/metrics.jsonl"

# a_rerun_trains_nothing [MODEL=...]
a_rerun_trains_nothing() {
    ok 'a rerun succeeds' recipe -n "$@"
    unlike 'a rerun trains nothing' "$(cat "$T/.out")" 'meg-(vocab|train)'
}
a_rerun_trains_nothing

# Run the commands that the last lines suggest.
run_commands() {
    printf '%s\n' "$screen" | sed -n 's/^  \$ //p' >"$T/commands"
    while IFS= read -r line; do
        ok "$line" sh -c 'cd "$0" && timeout 60 bash -eo pipefail -c "$1" </dev/null' "$T/out" "$line"
    done <"$T/commands"
}
run_commands

# ---- the models that predict masked words, in the same directory
for model in bert t5; do
    ok "MODEL=$model: the recipe runs from text to masked words" recipe MODEL=$model
    screen=$(sed -n '/validation loss/,$p' "$T/.out")
    like 'the last lines have the validation loss before and after' "$screen" 'validation loss [0-9.]+ before training, [0-9.]+ after 60 iterations'
    like 'the last lines have the accuracy, and that of the most frequent word' "$screen" \
        '^Of [0-9]+ masked words of the validation text, the model predicts [0-9.]+%\. .*guessing "[a-z]+" predicts [0-9.]+%\.$'
    like 'the last lines have a sentence with a mask' "$screen" '\[MASK\]'
    like 'the last lines have the most likely words with probabilities' "$screen" '^  predicted: ([^ ]+ [0-9]+%, ){4}[^ ]+ [0-9]+%$'
    for file in $model/masked.json $model/filled.jsonl $model/loss.png $model/log $model/metrics.jsonl vocab.txt masked.jsonl; do
        ok "there is a file $file" test -s "$T/out/$file"
        like "the last lines name $file" "$screen" "$file"
    done
    ok 'the validation loss falls' jq -se 'map(select(.split == "valid")) | first.lm_loss - last.lm_loss > 0.5' "$T/out/$model/metrics.jsonl"
    ok 'each line of masked.jsonl has a mask, and one prediction' \
        test "$(grep -c '\[MASK\].*"word":"[a-z]' "$T/out/masked.jsonl")" = "$(jq .text "$T/out/$model/filled.jsonl" | wc -l)"
    a_rerun_trains_nothing MODEL=$model
    a_rerun_trains_nothing
    run_commands
done
recipe -n MODEL=bert VOCAB=280 >"$T/.out"
like 'another vocabulary size trains the model again' "$(cat "$T/.out")" 'meg-train .*bert.conf'
ok 'another vocabulary size keeps the other model' test -e "$T/out/gpt/done"
ok 'another vocabulary size removes the results of the model' test ! -e "$T/out/bert"
done_testing
