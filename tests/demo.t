#!/bin/sh
# The recipe of 'make demo', copied, with a model that learns in seconds.
. "${0%/*}/lib.sh"
cd "${0%/*}/.." || exit 1
for program in jq zstd gnuplot; do
    command -v $program >/dev/null || skip_all "no $program"
done

mkdir "$T/exp" "$T/out" "$T/text" "$T/text/.hidden"
cp recipes/demo/* "$T/exp"
chmod -R u+w "$T/exp"                             # of a source that nobody may write
cat >>"$T/exp/gpt.conf" <<'end'
num-layers = 1
hidden-size = 32
num-attention-heads = 2
seq-length = 64
micro-batch-size = 4
train-iters = 60
lr = 5e-3
lr-warmup-iters = 0
eval-iters = 2
eval-interval = 30
save-interval = 30
end
recipe() {
    make -C "$T/out" -f "$T/exp/Makefile" VOCAB=300 CORPUS="$T/text" "$@"
}

for i in 1 2 3 4 5 6 7 8; do
    cp LICENSE "$T/text/$i.txt"
done
printf 'tab\there, a "quote", a \\ and \377 what is not UTF-8\n' >"$T/text/odd.txt"
printf 'hidden\n' >"$T/text/.hidden/file"
printf 'a\0b' >"$T/text/binary"

printf 'too little\n' >"$T/short.txt"
is 'a corpus that is not there is said not to be' "$(recipe CORPUS="$T/nowhere" 2>&1 | grep -o 'CORPUS: there is no .*/nowhere')" \
    "CORPUS: there is no $T/nowhere"
is 'too little text is said to be so' "$(recipe CORPUS="$T/short.txt" 2>&1 | grep -o 'CORPUS gives 1 documents')" \
    'CORPUS gives 1 documents'

ok 'from a folder of text to the end' recipe
screen=$(sed -n '/validation loss/,$p' "$T/.out")
like 'the screen tells what was learnt' "$screen" 'validation loss [0-9.]+ before training, [0-9.]+ after 60 iterations'
for file in gpt/eval.json gpt/samples.txt gpt/loss.png gpt/log gpt/metrics.jsonl vocab.json tokenizer.json; do
    ok "it left $file" test -s "$T/out/$file"
    like "and names it" "$screen" "$file"
done
is 'text survives' "$(jq -r .text "$T/out/corpus.jsonl" | grep tab)" "$(printf 'tab\there, a "quote", a \\ and  what is not UTF-8')"
is 'hidden and binary files are no text' "$(jq -r .text "$T/out/corpus.jsonl" | grep -cxE 'hidden|a.?b')" 0
is 'no document is both trained on and held out' "$(cat "$T/out/train.jsonl" "$T/out/valid.jsonl" | wc -l)" \
    "$(wc -l <"$T/out/corpus.jsonl")"
ok 'the model has learnt' jq -se 'map(select(.split == "valid")) | first.lm_loss - last.lm_loss > 0.5' "$T/out/gpt/metrics.jsonl"
ok 'a rerun is done' recipe -n
unlike 'and has nothing to train' "$(cat "$T/.out")" meg-train

# the commands that the screen gives to go on with
printf '%s\n' "$screen" | sed -n 's/^  \$ //p' >"$T/commands"
cd "$T/out" || exit 1
while IFS= read -r line; do
    ok "$line" timeout 60 bash -eo pipefail -c "$line" </dev/null
done <"$T/commands"
done_testing
