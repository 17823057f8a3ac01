#!/bin/sh
# modules: ckpt train
# Distributed checkpoints (torch_dist) that Megatron core 0.10 to 0.20 wrote: weights, optimizer state, resume, refusals.
. "${0%/*}/../lib.sh"
need_shared
shared=$MEG_SHARED/golden
dist=$shared/torch_dist
cd "$T" || exit 1

# weights DIR: print the name, dtype, shape and bytes of each tensor in the safetensors files of a directory
cat >weights.pl <<'EOF'
use strict;
use JSON::PP;
my $round = shift @ARGV;
for my $path (@ARGV) {
    open my $f, '<:raw', $path or die "$path: $!";
    local $/;
    my $bytes = <$f>;
    my $n = unpack 'Q<', $bytes;
    my $header = decode_json(substr $bytes, 8, $n);
    for my $name (sort grep { $_ ne '__metadata__' } keys %$header) {
        my ($from, $to) = @{$header->{$name}{data_offsets}};
        my $data = substr $bytes, 8 + $n + $from, $to - $from;
        if ($round eq 'bf16' && $header->{$name}{dtype} eq 'F32') {
            $data = pack 'v*', map { ($_ + 0x7fff + ($_ >> 16 & 1)) >> 16 } unpack 'V*', $data;
        }
        (my $state = $name) =~ s/^optimizer\.state\.//;
        print "$state [@{$header->{$name}{shape}}] ", unpack('H*', $data), "\n";
    }
}
EOF
weights() {
    round=$1
    shift
    perl weights.pl "$round" "$@" | sort
}

# reference NAME: print the directory of the weights that the checkpoint NAME has
reference() {
    case $1 in
    gpt2-tiny*) echo "$shared/models/gpt2-tiny" ;;
    llama-tiny*) echo "$shared/models/llama-tiny" ;;
    *mini-gpt*) echo "$dist/mini-gpt" ;;
    *) echo "$dist/mini-llama" ;;
    esac
}

for dir in "$dist"/*/; do
    name=$(basename "$dir") dtype=fp32 given=
    case $name in
    mini-gpt | mini-llama) continue ;;
    *bf16) dtype=bf16 ;;
    plain-dcp*) given='--num-attention-heads 4 --ffn-hidden-size 24 --max-position-embeddings 16' ;;
    esac
    # shellcheck disable=SC2086 # $given is a list
    status "$name: conversion succeeds" 0 meg-convert -q --load-dir "$dir" --save-dir "$name" --saver native \
        --loader torch_dist $given
    weights "$dtype" "$(reference "$name")/mcore.safetensors" >want
    weights "$dtype" "$name"/release/model-*.safetensors >got
    ok "$name: the weights are those of the reference" cmp -s want got
    [ "$dtype$given" = fp32 ] || continue
    status "$name: the weights are written in the same format" 0 meg-convert -q --load-dir "$name" --save-dir "dist-$name" \
        --saver torch_dist
    status "$name: and are read" 0 meg-convert -q --load-dir "dist-$name" --save-dir "back-$name" --saver native
    ok "$name: with the same bytes" diff -r "$name" "back-$name"
done
is 'a written directory is complete' "$(cd dist-mini-gpt-full/release && echo .[!.]* * && jq -c . metadata.json)" \
    '.metadata __0_0.distcp common.pt metadata.json
{"sharded_backend":"torch_dist","sharded_backend_version":1,"common_backend":"torch","common_backend_version":1}'
ok 'and an item of the extra state for each linear layer' \
    grep -aq 'decoder.layers.mlp.linear_fc2._extra_state/shard_1_2' dist-mini-gpt-full/release/.metadata
for name in gpt2-tiny llama-tiny; do
    ok "$name: the native files do not depend on the parallel sizes" diff -r "$name-tp1" "$name-tp2-pp2"
done
is 'a plain checkpoint without sizes is refused' "$(meg-convert --load-dir "$dist/plain-dcp-mini-gpt" --save-dir x 2>&1 |
    grep -o 'num-attention-heads is required; specify.*')" \
    'num-attention-heads is required; specify the options that args of the checkpoint lacks'

# A run that has no iterations left saves what it has loaded.
printf '{"text":"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30"}\n' |
    meg-preprocess -q --input - --tokenizer-type NullTokenizer --vocab-size 31 --output-prefix d --append-eod
resume() {
    from=$1
    shift
    rm -rf run
    meg-train --load "$from" --save run --train-iters 7 --seq-length 16 --micro-batch-size 4 --global-batch-size 4 \
        --lr 0.001 --min-lr 1e-5 --data-path d_text_document --split 100,0,0 --tokenizer-type NullTokenizer \
        --vocab-size 31 --eval-iters 0 --use-checkpoint-opt_param-scheduler "$@" >log 2>&1
}
for name in mini-gpt-plain mini-gpt-full mini-gpt-dp2-dpr mini-llama-tp2-pp2-full mini-llama-dp2-dpr mini-llama-pp2-bf16 \
    core010-mini-gpt-tp2-pp2 core010-mini-llama-dp2 core012-mini-gpt-pp2 core014-mini-llama-tp2-pp2 \
    core015-mini-gpt-dp2-dpr; do
    option=
    case $name in *bf16) option=--bf16 ;; esac
    # shellcheck disable=SC2086 # $option may be empty
    status "$name: resuming succeeds" 0 resume "$dist/$name" $option
    weights fp32 "$(reference "$name")/moments.safetensors" >want
    weights fp32 run/iter_0000007/optim-*.safetensors | grep '^exp_avg' >got
    ok "$name: the moments are those of the reference" cmp -s want got
    [ -z "$option" ] || {
        weights fp32 "$(reference "$name")/mcore.safetensors" >want
        weights fp32 run/iter_0000007/optim-*.safetensors | sed -n 's/^fp32_param\.//p' >got
        ok "$name: the main parameters are those of the reference" cmp -s want got
    }
    is "$name: the state of the run" "$(jq -c '.run | [.consumed_train_samples, .optimizer.step,
        .opt_param_scheduler.num_steps, .opt_param_scheduler.end_wd]' run/iter_0000007/state.json)" '[28,7,28,0.1]'
done
status 'two more iterations can be trained' 0 resume "$dist/core010-mini-llama-dp2" --train-iters 9
ok 'and are saved as iteration 9' test -e run/iter_0000009/manifest.json
status '--finetune starts anew' 0 resume "$dist/mini-llama-per-layer" --finetune --train-iters 1
status 'weights without optimizer state are refused' 65 resume "$dist/mini-llama-per-layer"
is 'and the message says what to do' "$(grep -c 'has no optimizer state; use --no-load-optim' log)" 1

# Damage is found before anything is written.
cp -R "$dist/mini-gpt-full" damaged
chmod -R u+w damaged
printf 'XXXX' | dd of=damaged/iter_0000007/__0_0.distcp bs=1 seek=100000 conv=notrunc 2>dd.log
status 'a damaged item is refused' 65 meg-convert --info damaged --verify
is 'and the item is named' "$(meg-convert --info damaged --verify 2>&1 | grep -c '__0_0.distcp: ')" 1
cp "$dist/mini-gpt-full/iter_0000007/__0_0.distcp" damaged/iter_0000007/
cp -R damaged/iter_0000007 damaged/iter_0000008
status 'an iteration in the directory of another one is refused' 65 meg-convert --info damaged --ckpt-step 8
is 'and both are named' "$(meg-convert --info damaged --ckpt-step 8 2>&1 |
    grep -c 'iteration is 7, expected 8 from the name')" 1
rm -r damaged/iter_0000008
truncate -s 20000 damaged/iter_0000007/__0_0.distcp
status 'a truncated file is refused' 65 meg-convert --load-dir damaged --save-dir none
ok 'and nothing is written' test ! -e none
rm damaged/iter_0000007/__0_0.distcp
status 'a missing file is refused' 66 meg-convert --load-dir damaged --save-dir none
done_testing
