#!/bin/sh
# needs: ranks/comm
# modules: ckpt
# Checkpoints do not depend on the parallel layout of the run that saved them, and a run of any layout resumes from the
# checkpoints of any other layout.  FULL=1 tests all ordered pairs of the layouts; by default a few are tested.
. "${0%/*}/lib.sh"
[ -x "$B/tests/ranks/comm" ] || skip_all 'this build has no MPI'
. "${0%/*}/ranks.sh"

tiny_gpt >"$T/conf"
cat >>"$T/conf" <<'EOF'
num-layers = 4
group-query-attention = yes
num-query-groups = 2
swiglu = yes
untie-embeddings-and-output-weights = yes
train-iters = 4
lr-warmup-iters = 1
EOF
sed '/^untie/d; /^swiglu/d' "$T/conf" >"$T/tied.conf"

# Columns: name, ranks, options.
cat >"$T/layouts" <<'EOC'
one     1
dp2z3   2 --zero-stage 3
dp4os   4 --use-distributed-optimizer --ddp-bucket-size 3000
dp4os2  4 --use-distributed-optimizer --num-distributed-optimizer-instances 2 --overlap-grad-reduce --overlap-param-gather
tp2     2 --tensor-model-parallel-size 2
tp2sp   4 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer
pp2vp2  2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1
pp4     4 --pipeline-model-parallel-size 4
pp4e    4 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|t*3||tL
pp2vp3  2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t||t*2|t|L --use-distributed-optimizer
tp2pp2  4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
tp2cp2  4 --tensor-model-parallel-size 2 --context-parallel-size 2 --use-tp-pp-dp-mapping
EOC

# layout LAYOUT: print its ranks and options
layout() { sed -n "s/^$1  *//p" "$T/layouts"; }

# run LAYOUT DIR OPTION...: train in DIR, with checkpoints in DIR/ck and losses in DIR/loss
run() {
    # shellcheck disable=SC2046 # split into words
    set -- $(layout "$1") -- "$@"
    run_n=$1 run_options=
    shift
    while [ "$1" != -- ]; do run_options="$run_options $1"; shift; done
    mkdir -p "$3"
    cd "$3" || exit 1
    shift 3
    rm -f log.json
    ranks "$run_n" meg-train -q --config "${CONF:-$T/conf}" --save ck --log-json log.json $run_options "$@" >out 2>err
    run_status=$?
    [ $run_status = 0 ] || sed 's/^/#   /' err
    jq -r .lm_loss log.json >loss 2>/dev/null
    cd "$T" || exit 1
    return $run_status
}

# same A B: two checkpoints have identical files, except run.conf, which contains the layout
same() { diff -r -x run.conf "$1" "$2"; }

cd "$T" || exit 1
ok 'one rank trains' run one ref --save-interval 2
head -n 2 ref/loss >first
tail -n 2 ref/loss >last

# All layouts save one state to identical files.  --load is equal in all runs, because checkpoints contain the options.
for l in $([ "${FULL:-}" ] && cut -d' ' -f1 layouts || echo tp2sp pp2vp2 pp4e tp2cp2 dp2z3); do
    mkdir -p "at/$l"
    ln -s "$T/ref/ck" "at/$l/from"
    ok "$l: loads iteration 2 and saves it" run "$l" "at/$l" --load from --ckpt-step 2 --train-iters 2 --override-opt_param-scheduler
    [ -d at/ref ] || cp -r "at/$l" at/ref
    ok "$l: files are identical to those of other layouts" same at/ref/ck/iter_0000002 "at/$l/ck/iter_0000002"
    ok "$l: tensors are identical to those of one rank" same_tensors ref/ck/iter_0000002 "at/$l/ck/iter_0000002"
done

# Resume from the checkpoint of another layout.
if [ "${FULL:-}" ]; then
    for a in $(cut -d' ' -f1 layouts); do
        for b in $(cut -d' ' -f1 layouts); do
            [ "$a" = "$b" ] || echo "$a $b"
        done
    done
else
    printf '%s\n' 'dp4os pp2vp2' 'pp4 tp2sp' 'tp2 dp2z3' 'pp4e pp2vp3' 'pp2vp3 dp4os'
fi >pairs
while read -r a b; do
    if [ ! -d "half/$a" ]; then
        run "$a" "half/$a" --exit-interval 2 <&-
        is "$a: two steps succeed" $? 0
        ok "$a: losses equal those of one rank" near "half/$a/loss" first
    fi
    mkdir -p on
    ln -s "../half/$a/ck" on/from
    run "$b" on --load from <&-
    is "from $a to $b: the run succeeds" $? 0
    ok "from $a to $b: losses equal those of one rank" near on/loss last
    rm -rf on
done <pairs

# In bf16, saving f32 main parameters also works for a pipeline stage without parameters (the third stage of pp4e).
run pp4e bf16 --bf16 --save-interval 2
is 'bf16: training with a stage without parameters succeeds' $? 0
run one bf16one --bf16 --load ../bf16/ck --ckpt-step 2 --train-iters 2 --override-opt_param-scheduler
is 'bf16: one rank loads the checkpoint and saves it' $? 0
ok 'bf16: tensors are identical' same_tensors bf16/ck/iter_0000002 bf16one/ck/iter_0000002

# The last stage loads its replica of a tied embedding, but does not save it.
CONF=$T/tied.conf run tp2pp2 tied --save-interval 2
is 'tied embedding: training with tp2pp2 succeeds' $? 0
CONF=$T/tied.conf run one tied1 --load ../tied/ck --ckpt-step 2
is 'tied embedding: one rank resumes' $? 0
tail -n 2 tied/loss >tied/last
ok 'tied embedding: losses of one rank equal those of tp2pp2' near tied1/loss tied/last
for l in pp4 pp4e; do
    CONF=$T/tied.conf run $l $l --load ../tied/ck --ckpt-step 2
    ok "tied embedding: losses of $l equal those of tp2pp2" near $l/loss tied/last
done

# Load checkpoints of Megatron, unsharded and of 2 x 2 ranks, and of Hugging Face on two tensor-parallel ranks.  A
# learning rate of 0 keeps the weights.
for m in gpt2-tiny/megatron gpt2-tiny/megatron-tp2-pp2 llama-tiny/megatron-tp2-pp2 llama-tiny; do
    from=$golden/models/$m
    rm -rf foreign native
    meg-convert -q --load-dir "$from" --save-dir native --saver native
    ranks 2 meg-train -q --load "$from" --save foreign --tensor-model-parallel-size 2 --train-iters 1 --lr 0 \
        --mock-data --tokenizer-type NullTokenizer --vocab-size 127 --micro-batch-size 1 --global-batch-size 1 \
        --eval-iters 0 --seq-length 32 >out 2>err
    is "$m: loading on two tensor-parallel ranks succeeds" $? 0
    ok "$m: weights equal those of meg-convert" same_tensors native/release foreign/iter_0000001
done

# --async-save writes the same bytes as a synchronous save.
sed -i 's/^train-iters = 4/train-iters = 8/' conf
run tp2 now --save-interval 2
run tp2 later --save-interval 2 --async-save
is 'async: the run succeeds' $? 0
for i in 2 4 6 8; do
    ok "async: tensors are identical at iteration $i" same_tensors now/ck/iter_000000$i later/ck/iter_000000$i
done
is 'async: the directory has no other files' "$(ls later/ck | tr '\n' ' ')" \
    "$(ls now/ck | tr '\n' ' ')"

# In bf16, checkpoints have bf16 weights, and the f32 main parameters in the optimizer state.
bf16() { bf_l=$1 bf_d=$2; shift 2; run "$bf_l" "$bf_d" --bf16 --load from "$@"; }
run tp2sp bf --bf16 --save-interval 2
is 'bf16: the run succeeds' $? 0
is 'bf16: weights are bf16 and main parameters are f32' "$(jq -r '.tensors | to_entries[] | select(.key | endswith("0.mlp.linear_fc2.weight")) |
    .key[0:26] + " " + .value.dtype' bf/ck/iter_0000002/manifest.json | tr '\n' ' ')" \
    'decoder.layers.0.mlp.linea BF16 optimizer.state.exp_avg.de F32 optimizer.state.exp_avg_sq F32 optimizer.state.fp32_param F32 '
mkdir again moved back
for d in again moved back; do ln -s ../bf/ck $d/from; done
bf16 tp2sp again --ckpt-step 2 --save-interval 2
is 'bf16: a run resumes from iteration 2 of 8' "$? $(wc -l <again/loss | tr -d ' ')" '0 6'
ok 'bf16: resume is bit-identical' same_tensors bf/ck/iter_0000004 again/ck/iter_0000004
bf16 pp2vp2 moved --ckpt-step 2 --train-iters 2 --override-opt_param-scheduler
is 'bf16: another layout loads and saves the checkpoint' $? 0
ok 'bf16: tensors saved by another layout are identical' same_tensors bf/ck/iter_0000002 moved/ck/iter_0000002
run dp4os back --load from --ckpt-step 2 --train-iters 2 --override-opt_param-scheduler
is 'bf16: a run resumes in f32' $? 0
# sums DIR PREFIX: print the checksums of tensors whose names begin with PREFIX
sums() { jq -r --arg p "$2" '.tensors | to_entries[] | select(.key | startswith($p)) |
    (.key | ltrimstr($p)) + " " + .value.xxh3_128[0]' "$1/ck/iter_0000002/manifest.json" | grep -v ^optimizer | sort; }
is 'f32 weights equal the f32 main parameters of the bf16 run' "$(sums back '')" "$(sums bf optimizer.state.fp32_param.)"
like 'f32 weights include all tensors' "$(sums back '')" '^decoder.final_layernorm.weight [0-9a-f]{32}$'

# A write that fails on one rank is reported once, and the older checkpoint is kept.
fail='export MEG_FAULT_IN=iter_0000004.tmp MEG_FAULT_AT=1 MEG_FAULT_ERRNO=ENOSPC'
fail="$fail ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=fault.so"
for async in '' --async-save; do
    rm -rf full
    cp -r now full
    rm -rf full/ck/iter_0000004 full/ck/iter_0000006 full/ck/iter_0000008 full/ck/done
    echo 2 >full/ck/latest_checkpointed_iteration.txt
    (cd full && ranks_but 2 1 "$fail" meg-train -q --config "$T/conf" --tensor-model-parallel-size 2 --save ck \
        --load ck --save-interval 2 --exit-on-save-failure $async >out 2>err)
    is "no space on one rank${async:+, $async} ends with 74" $? 74
    is 'no space is reported once' "$(grep -c 'No space left' full/err)" 1
    like 'the message names the rank' "$(cat full/err)" 'rank 1: ck/iter_0000004.tmp[^/]*/.*write failed: No space'
    is 'no temporary files are left' "$(ls full/ck | tr '\n' ' ')" 'iter_0000002 latest_checkpointed_iteration.txt '
    (cd full && ranks_but 2 1 "$fail" meg-train -q --config "$T/conf" --tensor-model-parallel-size 2 --save ck \
        --load ck --save-interval 2 $async >out 2>err)
    is "without --exit-on-save-failure both ranks continue${async:+, $async}" "$? $(grep -c 'iteration 4 is not saved' full/err)" '0 1'
    is 'later checkpoints are saved' "$(ls full/ck | grep -v log | tr '\n' ' ')" \
        "done iter_0000002 iter_0000006 iter_0000008 latest_checkpointed_iteration.txt "
done
done_testing
