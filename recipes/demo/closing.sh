#!/bin/sh
# closing.sh RUN... - print the results of the demo, its files, and commands to try next.
set -eu
here=${0%/*}
demo=${PWD##*/}

loss_at() { # first|last RUN
    jq -s "map(select(.split == \"valid\")) | $1 | .lm_loss * 1000 | round / 1000" "$2/metrics.jsonl"
}

for run; do
    printf '\n%s: validation loss %s before training, %s after %s iterations\n\n' "$run" \
        "$(loss_at first "$run")" "$(loss_at last "$run")" "$(cat "$run/latest_checkpointed_iteration.txt")"
    head -n 24 "$run/samples.txt"
    printf '\nFiles in %s:\n' "$demo"
    printf '  %-42s %s\n' \
        'corpus.jsonl train.jsonl valid.jsonl' 'the text, a document per line; its training and validation part' \
        'vocab.json merges.txt tokenizer.json' 'the vocabulary trained on it' \
        '{train,valid}_text_document.bin .idx' 'the tokenized text, in the format of Megatron' \
        "$run/iter_*" checkpoints \
        "$run/log $run/metrics.jsonl" 'the log; the same numbers as JSON' \
        "$run/eval.json $run/samples.txt" 'perplexity of the validation text; generated text' \
        "$run/loss.png" 'training and validation loss'
done

run=$1
cat <<end

To continue, in $demo/ with ../bin in PATH:
  \$ echo 'The ' | meg-generate --load $run --temperature 0.8 --format text
  \$ meg-train --config $here/$run.conf --dry-run
  \$ meg-convert --info $run
  \$ meg-convert --load-dir $run --save-dir $run-hf
With your own text, in the directory of the project:
  make demo CORPUS=FILE|DIR
For the manual, start with man/meg.7.
end
