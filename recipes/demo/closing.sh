#!/bin/sh
# closing.sh MODEL RUN... - print the results of the demo, its files, and commands to try next.
set -eu
here=${0%/*}
demo=${PWD##*/}
model=$1
shift

loss_at() { # first|last RUN
    jq -s "map(select(.split == \"valid\")) | $1 | .lm_loss * 1000 | round / 1000" "$2/metrics.jsonl"
}

results() { # RUN
    case $model in
    gpt) head -n 24 "$1/samples.txt" ;;
    bert | t5)
        jq -r '"Of \(.words) masked words of the validation text, the model predicts \(.accuracy * 1000 | round / 10)%.  Always guessing " +
            "\"\(.most_frequent)\" predicts \(.most_frequent_accuracy * 1000 | round / 10)%.\n"' "$1/masked.json"
        cat "$1/examples.txt"
        ;;
    esac
}

files() { # RUN
    printf '  %-42s %s\n' \
        'corpus.jsonl train.jsonl valid.jsonl' 'the text, one document per line; its training and validation parts'
    case $model in
    gpt)
        printf '  %-42s %s\n' \
            'vocab.json merges.txt tokenizer.json' 'the vocabulary trained on it' \
            '{train,valid}_text_document.bin .idx' 'the tokenized text, in the format of Megatron'
        ;;
    bert | t5)
        printf '  %-42s %s\n' \
            vocab.txt 'the vocabulary trained on it' \
            '{train,valid}_text_sentence.bin .idx' 'the tokenized sentences, in the format of Megatron' \
            masked.jsonl 'validation text with masked words'
        ;;
    esac
    printf '  %-42s %s\n' \
        "$1/iter_*" checkpoints \
        "$1/log $1/metrics.jsonl" 'the log; the same numbers as JSON'
    case $model in
    gpt) printf '  %-42s %s\n' "$1/eval.json $1/samples.txt" 'perplexity of the validation text; generated text' ;;
    bert | t5) printf '  %-42s %s\n' "$1/filled.jsonl $1/masked.json" 'the predictions for masked.jsonl; their accuracy' ;;
    esac
    printf '  %-42s %s\n' "$1/loss.png" 'training and validation loss'
}

for run; do
    printf '\n%s: validation loss %s before training, %s after %s iterations\n\n' "$run" \
        "$(loss_at first "$run")" "$(loss_at last "$run")" "$(cat "$run/latest_checkpointed_iteration.txt")"
    results "$run"
    printf '\nFiles in %s:\n' "$demo"
    files "$run"
done

run=$1
printf '\nTo continue, in %s/ with ../bin in PATH:\n' "$demo"
case $model in
gpt)
    echo "  \$ echo 'The ' | meg-generate --load $run --temperature 0.8 --format text"
    echo "  \$ meg-convert --load-dir $run --save-dir $run-hf"
    ;;
bert | t5) echo "  \$ echo 'The default is [MASK].' | meg-eval --task fill-mask --load $run" ;;
esac
cat <<end
  \$ meg-train --config $here/$run.conf --dry-run
  \$ meg-convert --info $run
With your own text, in the directory of the project:
  make demo$([ "$model" = gpt ] || echo " MODEL=$model") CORPUS=FILE|DIR
For the manual, start with man/meg.7.
end
