#!/bin/sh
# needs: ranks/comm toy
# modules: nn
# Linear layers with low-rank adapters, in a family of models that is not in the library (tests/toy/low_rank.c).
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"
. "${0%/*}/train.sh"
PATH=$B/tests/toy:$PATH
sed -i -e '/^global-batch-size/d' "$T/conf"
echo 'global-batch-size = 8' >>"$T/conf"
echo 'init-method-std = 0.2' >>"$T/conf" # with small frozen embeddings, adapters could change the loss little
logged='if .split then .lm_loss else .lm_loss, .grad_norm end'

train --log-json "$T/gpt.json" >"$T/log" 2>"$T/err"
echo 'model = low-rank' >>"$T/conf"
train --save "$T/all" --save-interval 5 --log-json "$T/low.json" >"$T/log" 2>"$T/err"
is 'the model is trained' $? 0
first='map(select(.split == null))[0].lm_loss'
is 'the first loss is that of GPT without adapters' "$(jq -s "$first" "$T/low.json")" "$(jq -s "$first" "$T/gpt.json")"
ok 'the loss falls' jq -se 'map(select(.split == null)) | .[0].lm_loss - .[-1].lm_loss > 0.1' "$T/low.json"

checksum() { # NAME ITERATION: print the checksum of a tensor of layer 0 in a checkpoint
    jq -r --arg name "decoder.layers.0.$1" '.tensors[$name].xxh3_128[0] // error' "$T/all/iter_$2/manifest.json"
}
for name in self_attention.linear_qkv.weight mlp.linear_fc1.weight mlp.linear_fc2.bias input_layernorm.weight \
    pre_mlp_layernorm.bias; do
    isnt "$name is saved" "$(checksum $name 0000005)" ''
    is "$name is frozen" "$(checksum $name 0000005)" "$(checksum $name 0000010)"
done
for name in self_attention.linear_proj mlp.linear_fc1; do
    for factor in in out; do
        ok "the factor linear_$factor of $name is trained" \
            [ "$(checksum $name.adapter.linear_$factor.weight 0000005)" != "$(checksum $name.adapter.linear_$factor.weight 0000010)" ]
    done
done

states() { # NAME: print the number of optimizer states of a tensor of layer 0
    jq --arg name "decoder.layers.0.$1" '[.tensors | keys[] | select(startswith("optimizer") and endswith($name))] | length' \
        "$T/all/iter_0000010/manifest.json"
}
is 'a frozen weight has no optimizer state' "$(states mlp.linear_fc1.weight)" 0
is 'a factor has two' "$(states mlp.linear_fc1.adapter.linear_in.weight)" 2
is 'only factors have optimizer state' "$(jq -r '.tensors | keys[] | select(startswith("optimizer"))' \
    "$T/all/iter_0000010/manifest.json" | grep -vc '\.adapter\.linear_\(in\|out\)\.weight$')" 0
mib() { # MODEL TENSORS OPTION...: print the MiB of gradients or optimizer state in the plan of a model
    model=$1 tensors=$2
    shift 2
    train --model "$model" --hidden-size 512 --dry-run "$@" 2>"$T/err" |
        awk -v tensors="$tensors" 'index($0, "  " tensors " ") == 1 { print $NF }'
}
for zero in 0 2 3; do
    for tensors in gradients 'optimizer state'; do
        gpt=$(mib gpt "$tensors" --world-size 2 --zero-stage $zero)
        low=$(mib low-rank "$tensors" --world-size 2 --zero-stage $zero)
        ok "the planned memory of $tensors is smaller with ZeRO-$zero: $low MiB instead of $gpt" \
            awk -v gpt="$gpt" -v low="$low" 'BEGIN { exit !(gpt > 10 && low < gpt / 40) }'
    done
done

train --save "$T/half" --exit-interval 5 >"$T/log" 2>"$T/err"
train --save "$T/half" --load "$T/half" >"$T/log" 2>"$T/err"
ok 'a resumed run is bit-identical' same_tensors "$T/half/iter_0000010" "$T/all/iter_0000010"

train_ranks one 1
equals_one_rank 2 --tensor-model-parallel-size 2
equals_one_rank 2 --tensor-model-parallel-size 2 --sequence-parallel
equals_one_rank 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1
equals_one_rank 2 --context-parallel-size 2 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
equals_one_rank 4 --tensor-model-parallel-size 2 --zero-stage 3
equals_one_rank 4 --tensor-model-parallel-size 2 --zero-stage 2
equals_one_rank 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
equals_one_rank 2 --zero-stage 2 --overlap-grad-reduce --overlap-param-gather
equals_one_rank 4 --zero-stage 3 --overlap-grad-reduce --overlap-param-gather --micro-batch-size 1

# ZeRO-3 shards frozen weights, which have no gradients.
ranks 2 meg-train -q --config "$T/conf" --load "$T/all" --ckpt-step 5 --train-iters 5 --override-opt_param-scheduler \
    --save "$T/zero3" --zero-stage 3 >"$T/out" 2>&1
ok 'ZeRO-3 loads and saves the files of one rank' same_tensors "$T/all/iter_0000005" "$T/zero3/iter_0000005"
in_bf16() { # NAME N OPTION...: train in bf16 on N ranks, and save to $T/NAME.d
    name=$1 n=$2
    shift 2
    train_ranks "$name" "$n" --bf16 --save "$T/$name.d" "$@"
}
in_bf16 bf16 2 --zero-stage 3
in_bf16 half_bf16 2 --zero-stage 3 --exit-interval 5
in_bf16 half_bf16 2 --zero-stage 3 --load "$T/half_bf16.d"
ok 'a run in bf16 with ZeRO-3 that is resumed is bit-identical' \
    same_tensors "$T/bf16.d/iter_0000010" "$T/half_bf16.d/iter_0000010"
done_testing
