#!/bin/sh
# modules: logging
# What meg-train prints on standard output at its start, in the form that log parsers of Megatron read.
. "${0%/*}/../lib.sh"
. "${0%/*}/../train.sh"

cd "$T" || exit 1
set -- --train-iters 1 --lr-warmup-iters 0 --eval-iters 0
meg-train --config conf "$@" --bf16 >out 2>err
is 'the block of arguments has its two titles' "$(sed -n 's/^-* \(.*arguments\) -*$/\1/p' out)" 'arguments
end of arguments'
# value NAME: print the value of an argument, in the block that log parsers read
value() { sed -n '/^-* arguments -*$/,/^-* end of arguments -*$/s/^  '"$1"' \.\.* //p' out; }
is 'integers have the values of the options' "$(value seq_length) $(value num_layers) $(value global_batch_size)" '16 2 4'
is 'switches have the values of Python' "$(value bf16) $(value swiglu)" 'True False'
is 'the number of ranks is an argument' "$(value world_size) $(value data_parallel_size)" '1 1'
is 'a name is padded with dots to 48 characters' "$(grep seq_length out)" '  seq_length ...................................... 16'
# 101 tokens and 16 positions of 32 features; two layers of 12704 and a final norm of 64 parameters
is 'the number of parameters has the form of Megatron' "$(grep 'number of parameters' out)" \
    ' > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 29216'
is 'the first log line follows' "$(tail -n 1 out | grep -c ' iteration  ')" 1
is 'neither is printed with -q' "$(train "$@" | grep -c -e arguments -e parameters)" 0
meg-train --config conf "$@" --dry-run >out 2>err
is '--dry-run prints no arguments' "$(grep -c arguments out)" 0
done_testing
