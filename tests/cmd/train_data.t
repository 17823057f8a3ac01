#!/bin/sh
# Each option that gives a split its own data has an effect on that split, and on no other.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"
cd "$T" || exit 1

# Two more datasets whose ids repeat differently, so that their losses differ.
for d in b c; do
    id_lines 40 "$(printf %d "'$d")" | awk -v id="$(printf %d "'$d")" '{ gsub(/ /, " " id " "); print }' >$d.jsonl
    meg-preprocess -q --input $d.jsonl --tokenizer-type NullTokenizer --vocab-size 100 --append-eod --output-prefix $d
done
b=b_text_document c=c_text_document
sed -i '/^data-path/d; /^split/d' conf
train --data-path ids_text_document --split 1,0,0 --eval-iters 0 --save ck >/dev/null

# print the losses of the checkpoint's model on the given splits
losses() { train --load ck --skip-train "$@" | sed -n 's/.* on \([a-z]*\) set | lm loss value: \([^ ]*\).*/\1 \2/p'; }
# print the log of training
steps_of() { train --eval-iters 0 --train-iters 3 "$@" | steps; }
of() { losses --data-path "$1" --split "$2" | cut -d' ' -f2; }

of_b=$(of $b 0,1,0)
of_c=$(of $c 0,0,1)
like 'the loss of one dataset is a number' "$of_b" '^[0-9.]+E[-+][0-9]+$'
isnt 'the loss of the other differs' "$of_b" "$of_c"

is '--valid-data-path feeds validation' "$(losses --valid-data-path $b)" "validation $of_b"
is '--test-data-path feeds the test' "$(losses --test-data-path $c)" "test $of_c"
is 'both feed both' "$(losses --valid-data-path $b --test-data-path $c)" "validation $of_b
test $of_c"
is 'swapped, they feed the other split' "$(losses --valid-data-path $c --test-data-path $b)" "validation $of_c
test $of_b"
is '--train-data-path feeds training' "$(steps_of --train-data-path $b --valid-data-path $c)" "$(steps_of --data-path $b --split 1,0,0)"
like 'training has a loss' "$(steps_of --train-data-path $b)" 'iteration +3/ .* lm loss: [0-9.]+E'
isnt 'other data give another loss' "$(steps_of --train-data-path $b)" "$(steps_of --train-data-path $c)"

# Megatron-DeepSpeed's groups: a dataset and the fractions that bound its part
fork() { train --load ck --skip-train --data-order megatron-deepspeed --data-path $b --split "$1" |
    sed -n 's/.* on \([a-z]*\) set | lm loss value: \([^ ]*\).*/\1 \2/p'; }
half=$(fork 50,50,0)
like 'half of a dataset has a loss' "$half" '^validation [0-9]'
isnt 'it differs from that of the complete dataset' "$half" "validation $of_b"
is '--valid-weighted-split-paths feeds validation' "$(losses --valid-weighted-split-paths "v: 1 0.5:1 $b")" "$half"
is '--test-weighted-split-paths feeds the test' "$(losses --test-weighted-split-paths "t: 1 0:1 $c")" "test $of_c"
is '--train-weighted-split-paths feeds training' "$(steps_of --train-weighted-split-paths "n: 1 0:1 $b")" \
    "$(steps_of --train-data-path $b --data-order megatron-deepspeed)"

printf '"v: 1 0.5:1 %s"\n' $b >valid
printf '"t: 1 0:1 %s"\n' $c >./test
printf '"n: 1 0:1 %s"\n' $b >train
is '--valid-weighted-split-paths-path feeds validation' "$(losses --valid-weighted-split-paths-path valid)" "$half"
is '--test-weighted-split-paths-path feeds the test' "$(losses --test-weighted-split-paths-path test)" "test $of_c"
is '--train-weighted-split-paths-path feeds training' "$(steps_of --train-weighted-split-paths-path train)" \
    "$(steps_of --train-weighted-split-paths "n: 1 0:1 $b")"
is 'each file feeds its split' "$(losses --valid-weighted-split-paths-path test --test-weighted-split-paths-path valid)" \
    "validation $of_c
test ${half#validation }"
done_testing
