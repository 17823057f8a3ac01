#!/bin/sh
# modules: data
# Each option that sets the data of one split affects that split and no other.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"
cd "$T" || exit 1

# Create two more datasets whose ids repeat differently, so that their losses differ.
for d in b c; do
    id_lines 40 "$(printf %d "'$d")" | awk -v id="$(printf %d "'$d")" '{ gsub(/ /, " " id " "); print }' >$d.jsonl
    meg-preprocess -q --input $d.jsonl --tokenizer-type NullTokenizer --vocab-size 100 --append-eod --output-prefix $d
done
b=b_text_document c=c_text_document
sed -i '/^data-path/d; /^split/d' conf
train --data-path ids_text_document --split 1,0,0 --eval-iters 0 --save ck >/dev/null

# losses OPTION...: print the losses of the checkpoint's model on the splits that have data
losses() { train --load ck --skip-train "$@" | sed -n 's/.* on \([a-z]*\) set | lm loss value: \([^ ]*\).*/\1 \2/p'; }
# steps_of OPTION...: print the training log
steps_of() { train --eval-iters 0 --train-iters 3 "$@" | steps; }
of() { losses --data-path "$1" --split "$2" | cut -d' ' -f2; }

of_b=$(of $b 0,1,0)
of_c=$(of $c 0,0,1)
like 'the loss of one dataset is a number' "$of_b" '^[0-9.]+E[-+][0-9]+$'
isnt 'the loss of the other dataset differs' "$of_b" "$of_c"

is '--valid-data-path sets the validation data' "$(losses --valid-data-path $b)" "validation $of_b"
is '--test-data-path sets the test data' "$(losses --test-data-path $c)" "test $of_c"
is 'both options set the data of both splits' "$(losses --valid-data-path $b --test-data-path $c)" "validation $of_b
test $of_c"
is 'swapped paths set the data of the other split' "$(losses --valid-data-path $c --test-data-path $b)" "validation $of_c
test $of_b"
is '--train-data-path sets the training data' "$(steps_of --train-data-path $b --valid-data-path $c)" "$(steps_of --data-path $b --split 1,0,0)"
like 'training with --train-data-path has a loss' "$(steps_of --train-data-path $b)" 'iteration +3/ .* lm loss: [0-9.]+E'
isnt 'other training data result in another loss' "$(steps_of --train-data-path $b)" "$(steps_of --train-data-path $c)"

# Megatron-DeepSpeed's options list datasets, each with a weight and the range of its documents as fractions.
fork() { train --load ck --skip-train --data-order megatron-deepspeed --data-path $b --split "$1" |
    sed -n 's/.* on \([a-z]*\) set | lm loss value: \([^ ]*\).*/\1 \2/p'; }
half=$(fork 50,50,0)
like 'half of a dataset has a loss' "$half" '^validation [0-9]'
isnt 'the loss of half of a dataset differs from that of the complete dataset' "$half" "validation $of_b"
is '--valid-weighted-split-paths sets the validation data' "$(losses --valid-weighted-split-paths "v: 1 0.5:1 $b")" "$half"
is '--test-weighted-split-paths sets the test data' "$(losses --test-weighted-split-paths "t: 1 0:1 $c")" "test $of_c"
is '--train-weighted-split-paths sets the training data' "$(steps_of --train-weighted-split-paths "n: 1 0:1 $b")" \
    "$(steps_of --train-data-path $b --data-order megatron-deepspeed)"

printf '"v: 1 0.5:1 %s"\n' $b >valid
printf '"t: 1 0:1 %s"\n' $c >./test
printf '"n: 1 0:1 %s"\n' $b >train
is '--valid-weighted-split-paths-path sets the validation data' "$(losses --valid-weighted-split-paths-path valid)" "$half"
is '--test-weighted-split-paths-path sets the test data' "$(losses --test-weighted-split-paths-path test)" "test $of_c"
is '--train-weighted-split-paths-path sets the training data' "$(steps_of --train-weighted-split-paths-path train)" \
    "$(steps_of --train-weighted-split-paths "n: 1 0:1 $b")"
is 'each file sets the data of its split' "$(losses --valid-weighted-split-paths-path test --test-weighted-split-paths-path valid)" \
    "validation $of_c
test ${half#validation }"
# ---- several groups of Megatron-DeepSpeed ----
named() { sed -n 's/^\([a-z]*\) loss at \(iteration [0-9]*.*\) | lm loss value: \([^ ]*\).*/\1 \2 \3/p'; }
groups() { train --load ck --skip-train "$@" | named; }
n=$(train --load ck --skip-train --valid-data-path $b | sed -n 's/.* at iteration \([0-9]*\) .*/\1/p')
is 'the groups of both splits are evaluated one by one under their names' "$(groups \
    --valid-weighted-split-paths "bb: 1 0.5:1 $b" "cc: 1 0:1 $c" --test-weighted-split-paths "tt: 1 0:1 $c" "uu: 1 0:1 $b")" \
    "bb iteration $n on validation set ${half#validation }
cc iteration $n on validation set $of_c
tt iteration $n on test set $of_c
uu iteration $n on test set $of_b"
printf '"bb: 1 0.5:1 %s" "cc: 1 0:1 %s"\n' $b $c >valid
is 'a file may contain several groups' "$(groups --valid-weighted-split-paths-path valid | wc -l)" 2
many() { train --train-weighted-split-paths "n: 1 0:1 $b" --valid-weighted-split-paths "bb: 1 0.5:1 $b" "cc: 1 0:1 $c" "$@"; }
many --log-json many.json --tensorboard-dir many --log-validation-ppl-to-tensorboard --save many-ck --save-interval 8 |
    named >many.log
is 'the groups are evaluated at each interval' "$(grep -c '^bb iteration 4 [0-9]' many.log)$(grep -c '^cc iteration 8 [0-9]' many.log)" 11
is 'a JSON line has the name of its group' "$(jq -r 'select(.group) | [.split, .group, .iteration] | join(" ")' many.json | sed -n '3,4p')" 'valid bb 4
valid cc 4'
ok 'TensorBoard has the tags of Megatron-DeepSpeed' grep -aq 'lm-loss-validation/cc/lm loss validation ppl vs samples' many/*
many --load many-ck --ckpt-step 8 --save rest | named >rest.log
like 'a resumed run evaluates each group' "$(cat rest.log)" '^cc iteration 10 on validation set [0-9]'
is 'it continues the samples of each group' "$(cat rest.log)" "$(sed -n '/iteration 10/p' many.log)"

like '--dry-run prints the group of a dataset' "$(many --dry-run)" "^  valid .* $c \\(group cc\\)\$"

# ---- epochs: 4 samples of 16 tokens in each iteration ----
tokens=$(meg-train --config conf --data-path $b --split 1 --dry-run 2>/dev/null | awk '$1 == "train" { print $4 }')
like 'the number of tokens of a dataset is known' "$tokens" '^[0-9]+$'
epochs=$(awk "BEGIN { printf \"%.3g\", 50 * 64 / $tokens }")
is 'a run prints the epochs of each dataset' \
    "$(meg-train --config conf --train-data-path $b --valid-data-path $c --train-iters 50 --eval-iters 1 --eval-interval 50 --dry-run 2>&1 |
        grep -c -e "^meg-train: train data: $epochs epochs of $b ($tokens tokens)\$" -e "^meg-train: valid data: .* epochs of $c")" 2
train --data-path $b --split 1 --eval-iters 0 --train-iters $((4 * tokens / 64)) --dry-run 2>err >/dev/null
is 'four epochs cause no warning' "$(cat err)" ''
train --data-path 1 $b 1 $c --split 1 --eval-iters 0 --train-iters $((4 * tokens / 64)) --dry-run 2>err >/dev/null
is 'a weight is taken into account' "$(cat err)" ''
train --data-path 7 $b 1 $c --split 1 --eval-iters 0 --train-iters $((5 * tokens / 64)) --dry-run 2>err >/dev/null
like 'a weighted dataset that is read more than four times causes a warning' "$(cat err)" \
    "^meg-train: the run reads 1 of its training datasets for more than 4 epochs, at most 4[.][0-9]* epochs of $b; use more text"
is 'generated data have no epochs' "$(meg-train --config conf --mock-data --eval-iters 0 --dry-run 2>&1 | grep -c epochs' of')" 0
is 'datasets of an unweighted blend are read once' \
    "$(meg-train --config conf --data-path $b $c $b --split 1 --eval-iters 0 --train-iters 1000 --dry-run 2>&1 | grep -c 'train data: 1 epochs of')" 3

# --skip-train evaluates the first samples, whether or not the model of the checkpoint was evaluated in training.
train --data-path ids_text_document --split 60,20,20 --train-iters 2 --lr-warmup-iters 0 --eval-interval 1 --save evaluated >/dev/null
again() {
    train --data-path ids_text_document --split 60,20,20 --eval-interval 1 --skip-train --load evaluated "$@" |
        sed -n 's/.* on \([a-z]* set .*\)/\1/p'
}
is 'evaluation after training and of initial weights reads the same samples' "$(again)" "$(again --finetune)"
like 'evaluation after training has a loss' "$(again)" '^validation set . lm loss value: [0-9]'
done_testing
