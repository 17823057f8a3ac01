#!/bin/sh
# needs: ranks/comm
# modules: run
# An invalid combination of layout options ends with status 2 and a message of one line that has option, value and rule.
. "${0%/*}/../lib.sh"

train() {
    meg-train --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 32 --max-position-embeddings 32 \
        --micro-batch-size 1 --global-batch-size 16 --train-iters 10 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer \
        --vocab-size 99 "$@"
}

# Megatron-LM does not read these options without --recompute-granularity.
for option in '--recompute-num-layers 2' '--checkpoint-num-layers 2' '--recompute-method block'; do
    # shellcheck disable=SC2086
    status "$option alone is accepted" 0 train -q --dry-run $option
    name=${option% *}
    is "$option alone: one warning says that it has no effect" "$(grep -c -- "--recompute-${name#--*-} has no effect without" "$T/err")" 1
done

# refuses RANKS REGEX OPTION...: check that a dry run for RANKS ranks is refused with a message that matches REGEX
refuses() {
    n=$1 regex=$2
    shift 2
    train --dry-run --world-size "$n" "$@" >"$T/out" 2>"$T/err"
    is "$n ranks $*: status 2, one line, no report" "$? $(wc -l <"$T/err" | tr -d ' ') $(wc -c <"$T/out" | tr -d ' ')" '2 1 0'
    like "$n ranks $*: the message has the rule" "$(cat "$T/err")" "$regex"
}

tp='--tensor-model-parallel-size' pp='--pipeline-model-parallel-size' cp='--context-parallel-size'
ep='--expert-model-parallel-size' etp='--expert-tensor-parallel-size'
full='--recompute-granularity full --recompute-method uniform --recompute-num-layers'
# shellcheck disable=SC2086
{
    refuses 4 "$tp 3 times .* is 3, which does not divide the number of ranks, 4" $tp 3
    refuses 6 'is 4, which does not divide the number of ranks, 6' $tp 2 $pp 2
    refuses 2147483647 'is 18446744073709551616, which does not divide' $tp 2097152 $pp 2097152 $cp 4194304
    refuses 8 "$tp 16: must be at most 8, the number of ranks" $tp 16
    refuses 8 "$tp 0: must be at least 1" $tp 0
    refuses 3 "$tp 3: must divide --num-attention-heads 8" $tp 3 --global-batch-size 3
    refuses 8 "$tp 8: must divide --num-query-groups 4" $tp 8 --group-query-attention --num-query-groups 4
    refuses 4 "$tp 4: must divide --ffn-hidden-size 66" $tp 4 --ffn-hidden-size 66
    refuses 4 '--seq-length 30: must be a multiple of 4, .* with --sequence-parallel' $tp 4 --sequence-parallel \
        --seq-length 30
    refuses 4 "$cp 4: twice this size, 8, must divide --seq-length 20" $cp 4 --seq-length 20
    refuses 4 '--cp-comm-type: found 2 values, expected 1 or one per layer .--num-layers 8.' $cp 2 --cp-comm-type p2p a2a
    refuses 4 '--cp-comm-type a2a\+p2p: requires --hierarchical' $cp 4 --cp-comm-type a2a+p2p
    refuses 4 '--hierarchical-context-parallel-sizes 2 3: the product must equal' $cp 4 --cp-comm-type a2a+p2p \
        --hierarchical-context-parallel-sizes 2 3
    refuses 8 '--cp-comm-type a2a: the size of the all-to-all group, 8, must divide the number of query groups .*, 4' $cp 8 \
        --cp-comm-type a2a --group-query-attention --num-query-groups 4
    refuses 8 "$ep 0: must be at least 1" $ep 0
    refuses 8 "$etp 0: must be at least 1" $etp 0
    refuses 8 "$ep 3 times the tensor-parallel size of experts, 2, must divide .* of a pipeline stage, 4" $ep 3 $tp 2 $pp 2
    refuses 8 "$ep 16: must be at most 8, the number of ranks" $ep 16
    refuses 8 "$etp 1: must be $tp 2 without --sequence-parallel" $etp 1 $tp 2
    refuses 8 "$ep 2: --model gpt has no experts" $ep 2
    refuses 8 "$etp 2: --model gpt has no experts" $etp 2
    refuses 3 '--num-layers 8: must be a multiple of --pipeline-model-parallel-size 3' $pp 3 --global-batch-size 3
    refuses 4 '--num-layers 8: 5 layers remain .* divided equally over the other 3 pipeline stages' $pp 4 \
        --decoder-first-pipeline-num-layers 3
    refuses 4 '--num-layers 8: must be at least 10, which is 8 for .* and one for each other pipeline stage \(2\)' $pp 4 \
        --decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4
    refuses 4 '--decoder-first-pipeline-num-layers 9223372036854775807: must be at most --num-layers 8' $pp 4 \
        --decoder-first-pipeline-num-layers 9223372036854775807 --decoder-last-pipeline-num-layers 9223372036854775807
    refuses 2 '--num-layers 8: must be 7, the sum of' $pp 2 --decoder-first-pipeline-num-layers 3 \
        --decoder-last-pipeline-num-layers 4
    refuses 1 '--decoder-last-pipeline-num-layers 2: requires --pipeline-model-parallel-size' \
        --decoder-last-pipeline-num-layers 2
    refuses 1 '--norm-no-weight: requires --norm-no-bias, or --normalization RMSNorm' --norm-no-weight
    refuses 1 '--norm-no-weight: cannot be combined with --apply-layernorm-1p' --norm-no-weight --norm-no-bias \
        --apply-layernorm-1p
    refuses 1 '--norm-placement output: .* use --disable-bias-linear' --norm-placement output
    refuses 1 '--residual-multiplier 0.5: requires --disable-bias-linear' --residual-multiplier 0.5
    refuses 1 '--norm-placement sandwich: .* without --add-proj-bias and --add-mlp-bias' --norm-placement sandwich \
        --disable-bias-linear --add-mlp-bias
    refuses 1 '--residual-multiplier 0.5: .* without --add-proj-bias and --add-mlp-bias' --residual-multiplier 0.5 \
        --disable-bias-linear --add-proj-bias
    refuses 1 '--qk-norm-after-rope: cannot be combined with --attn-temperature-beta' --qk-layernorm \
        --qk-norm-after-rope --position-embedding-type rope --attn-temperature-beta 1 --attn-temperature-floor 4
    refuses 1 '--residual-multiplier -1: must be positive and finite' --residual-multiplier -1
    refuses 1 '--parallel-residual shared-norm: requires --norm-placement pre or sandwich' --disable-bias-linear \
        --parallel-residual shared-norm --norm-placement output
    refuses 1 '--apply-residual-connection-post-layernorm: cannot be combined with --norm-placement or --parallel-res' \
        --apply-residual-connection-post-layernorm --parallel-residual two-norms
    refuses 1 '--embedding-multiplier root: must be a positive number or sqrt' --embedding-multiplier root
    refuses 1 '--embedding-multiplier nan: must be a positive number or sqrt' --embedding-multiplier nan
    refuses 1 '--position-embedding-offset -1: must be from 0 to' --position-embedding-offset -1
    refuses 1 '--softmax-scale -1: must be positive and finite' --softmax-scale -1
    refuses 1 '--activation-func: cannot be combined with --swiglu' --activation-func relu --swiglu
    refuses 1 '--activation-func: cannot be combined with --glu-activation' --activation-func relu --glu-activation reglu
    refuses 1 '--gated-linear-unit: cannot be combined with --squared-relu' --gated-linear-unit --squared-relu
    refuses 1 '--quick-geglu: cannot be combined with --swiglu' --quick-geglu --swiglu
    refuses 1 '--glu-linear-offset: requires a gated linear unit' --glu-linear-offset 1
    refuses 1 '--activation-func-clamp-value: requires a gated linear unit' --activation-func-clamp-value 7
    refuses 1 '--activation-func-clamp-value -7: must be positive' --swiglu --activation-func-clamp-value -7
    refuses 4 '--num-layers-per-virtual-pipeline-stage 3: must divide the number of layers per stage, 2' $pp 4 \
        --num-layers-per-virtual-pipeline-stage 3
    refuses 1 '--num-layers-per-virtual-pipeline-stage 1: requires --pipeline-model-parallel-size of 2' \
        --num-layers-per-virtual-pipeline-stage 1
    refuses 4 'cannot be combined with --num-virtual-stages-per-pipeline-rank' $pp 4 --num-layers-per-virtual-pipeline-stage 1 \
        --num-virtual-stages-per-pipeline-rank 2
    refuses 4 'cannot be combined with --decoder-first-pipeline-num-layers .*; use --num-virtual-stages-per-pipeline-rank' \
        $pp 4 --decoder-first-pipeline-num-layers 2 --num-layers-per-virtual-pipeline-stage 1
    refuses 4 '--num-virtual-stages-per-pipeline-rank 2: must divide the number of layers of each stage, but stage 1 has 1' \
        $pp 4 --num-layers-in-first-pipeline-stage 2 --num-layers-in-last-pipeline-stage 4 \
        --num-virtual-stages-per-pipeline-rank 2
    refuses 4 '--num-layers 8: with --account-for-embedding-in-pipeline-split it counts as 9, which must be a multiple of' \
        $pp 4 --account-for-embedding-in-pipeline-split
    refuses 4 '--num-layers 8: with .* and --account-for-loss-in-pipeline-split it counts as 10, which must be' $pp 4 \
        --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split
    refuses 4 '--account-for-loss-in-pipeline-split: cannot be combined with --decoder-first-pipeline-num-layers' $pp 4 \
        --account-for-loss-in-pipeline-split --decoder-last-pipeline-num-layers 2
    refuses 3 '--num-virtual-stages-per-pipeline-rank 2: must divide the number of layers per stage, 3, including the embedding or the loss, which count as layers' \
        $pp 3 --account-for-loss-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 3
    layout=--pipeline-model-parallel-layout
    refuses 4 "$layout Et.4.x: found 'x' at position 6, expected E, t, L, .* or a group" $pp 4 $layout 'Et*4|x'
    refuses 4 "$layout E.*: found 'm' at position 15, .*: multi-token prediction .m. is not supported" $pp 4 \
        $layout 'Et*3|(tt|)*2,tmL'
    refuses 4 "$layout .*: has 3 virtual stages, expected a multiple of $pp 4" $pp 4 $layout 'Et*4|t*4|L'
    refuses 4 "$layout .*: has 7 layers .t., expected --num-layers 8" $pp 4 $layout 'Et*3|t*4||L'
    refuses 1 "$layout .*: has 2 virtual stages, which require $pp of 2 or more" $layout 'Et*4|t*4L'
    refuses 4 "$layout .*: cannot be combined with --num-virtual-stages-per-pipeline-rank" $pp 4 $layout 'Et*4|t*4||L' \
        --num-virtual-stages-per-pipeline-rank 1
    refuses 4 "$layout .*: cannot be combined with --account-for-loss-in-pipeline-split" $pp 4 $layout 'Et*4|t*4||L' \
        --account-for-loss-in-pipeline-split
    refuses 4 '--num-virtual-stages-per-pipeline-rank 4: must divide the number of layers per stage, 2' $pp 4 \
        --num-virtual-stages-per-pipeline-rank 4
    refuses 4 'a step has 3 micro-batches' $pp 4 --num-layers-per-virtual-pipeline-stage 1 \
        --global-batch-size 3
    refuses 4 'stage 4: dividing the 5 micro-batches of a step by this group size leaves a remainder of 1' $pp 4 --num-layers-per-virtual-pipeline-stage 1 --global-batch-size 5
    refuses 4 '--microbatch-group-size-per-virtual-pipeline-stage 3: must be from 4' $pp 4 \
        --num-layers-per-virtual-pipeline-stage 1 --microbatch-group-size-per-virtual-pipeline-stage 3
    refuses 4 '--pipeline-schedule interleaved: requires --num-virtual-stages' $pp 4 --pipeline-schedule interleaved
    refuses 4 '--pipeline-schedule zb-h1: requires --num-virtual-stages-per-pipeline-rank 1' $pp 4 --pipeline-schedule zb-h1 \
        --num-layers-per-virtual-pipeline-stage 1
    refuses 4 '--pipeline-schedule zb-h1: cannot be combined with --recompute-activations' $pp 4 --pipeline-schedule zb-h1 \
        --recompute-activations
    refuses 1 '--recompute-granularity full: requires --recompute-method' --recompute-granularity full
    refuses 1 '--recompute-method uniform: requires --recompute-granularity full' --recompute-method uniform --recompute-activations
    refuses 1 '--recompute-num-layers 2: requires --recompute-granularity full' --recompute-num-layers 2 \
        --recompute-granularity selective
    refuses 1 '--recompute-granularity full: contradicts --recompute-activations, which is selective' --recompute-activations $full 1
    refuses 1 '--recompute-num-layers 0: must be at least 1' $full 0
    refuses 2 '--distribute-saved-activations: requires --tensor-model-parallel-size' --distribute-saved-activations $full 1
    refuses 2 '--distribute-saved-activations: cannot be combined with --sequence-parallel' $tp 2 --sequence-parallel \
        --distribute-saved-activations $full 1
    refuses 2 '--distribute-saved-activations: requires --recompute-granularity full' $tp 2 --distribute-saved-activations
    refuses 2 '--cuda-graph-impl local: cannot be combined with tensor or context parallelism' $tp 2 --cuda-graph-impl local
    refuses 2 '--enable-cuda-graph: cannot be combined with tensor or context parallelism' --context-parallel-size 2 \
        --enable-cuda-graph
    refuses 8 '--global-batch-size 12: must be a multiple of 8' --global-batch-size 12
    refuses 2 '--overlap-param-gather: requires --overlap-grad-reduce, and --use-distributed-optimizer' --overlap-param-gather
    refuses 2 '--num-distributed-optimizer-instances 0: must be at least 1' --num-distributed-optimizer-instances 0
    refuses 2 '--num-distributed-optimizer-instances 2: requires --use-distributed-optimizer' \
        --num-distributed-optimizer-instances 2
    refuses 4 '--num-distributed-optimizer-instances 3: must divide the data-parallel size, 4' \
        --use-distributed-optimizer --num-distributed-optimizer-instances 3
}

# ranks_refuse RANKS REGEX OPTION...: check that RANKS started ranks print one message in total and leave no file or
# process
ranks_refuse() {
    n=$1 regex=$2
    shift 2
    ranks "$n" meg-train --num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 32 \
        --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 16 --train-iters 10 --lr 1e-3 --mock-data \
        --tokenizer-type NullTokenizer --vocab-size 99 --save "$T/save" "$@" >"$T/out" 2>"$T/err"
    is "$n started ranks $*: the status is 2" $? 2
    is 'one rank reports the rule' "$(grep -c -e "^meg-train.*$regex" "$T/err")" 1
    ok 'no file is written' test ! -e "$T/save"
    is 'no process is left' "$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c "$T/[s]ave")" 0
}
if [ -x "$B/tests/ranks/comm" ]; then
    . "${0%/*}/../ranks.sh"
    # shellcheck disable=SC2086
    {
        ranks_refuse 3 'must divide --num-attention-heads 8' $tp 3
        ranks_refuse 2 "$tp 4: must be at most 2, the number of ranks" $tp 4
        ranks_refuse 3 '--num-layers 8: must be a multiple of' $pp 3
        ranks_refuse 2 "$cp 2: twice this size, 4, must divide --seq-length 30" $cp 2 --seq-length 30
        ranks_refuse 3 '--global-batch-size 16: must be a multiple of 3'
        ranks_refuse 2 '--overlap-param-gather: requires --overlap-grad-reduce, and --use-distributed-optimizer' --overlap-param-gather
        ranks_refuse 4 '--pipeline-schedule interleaved: requires --num-virtual-stages' $pp 4 --pipeline-schedule interleaved
        ranks_refuse 2 "$tp 4: must be at most 2, the number of ranks" $tp 4 --num-workers 2 --override-lr-scheduler
        is 'one rank prints the options with new names or without effect' "$(grep -c -e --num-workers "$T/err") $(grep -e \
            '--override-lr-scheduler (now --override-opt_param-scheduler); .* no effect.*: --num-workers$' "$T/err" | grep -c '^meg-train: ')" '1 1'
    }
else
    skip 'started ranks' 'this build has no MPI'
fi
done_testing
