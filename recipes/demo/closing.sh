#!/bin/sh
# closing.sh RUN... - what the demo made, where it lies, and what to try next.
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
    printf '\nIn %s now lie\n' "$demo"
    printf '  %-42s %s\n' \
        'corpus.jsonl train.jsonl valid.jsonl' 'the text, a document a line, and its two parts' \
        'vocab.json merges.txt tokenizer.json' 'the vocabulary learnt from it' \
        '{train,valid}_text_document.bin .idx' 'the text in tokens, as Megatron reads it too' \
        "$run/iter_*" checkpoints \
        "$run/log $run/metrics.jsonl" 'log lines; the same numbers as JSON' \
        "$run/eval.json $run/samples.txt" 'perplexity of the held-out text; what the model wrote' \
        "$run/loss.png" 'the loss of training and validation'
done

run=$1
cat <<end

To go on, in $demo/ with ../bin in PATH:
  \$ echo 'The ' | meg-generate --load $run --temperature 0.8 --format text
  \$ meg-train --config $here/$run.conf --dry-run
  \$ meg-convert --info $run
  \$ meg-convert --load-dir $run --save-dir $run-hf
and with your own text, in the project's folder:
  make demo CORPUS=FILE|FOLDER
The manual begins with man/meg.7.
end
