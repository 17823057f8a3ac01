#!/bin/sh
# modules: ckpt
# meg-generate, meg-eval and meg-convert check model options on the command line against the checkpoint.
. "${0%/*}/../lib.sh"
cd "$T" || exit 1

meg-train -q --num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2 \
    --seq-length 16 --max-position-embeddings 16 --position-embedding-type rope --swiglu --norm-epsilon 1e-6 \
    --micro-batch-size 1 --train-iters 1 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 99 \
    --eval-iters 0 --split 1,0,0 --save gpt >/dev/null
echo '{"ids": [1, 2, 3]}' >prompts

run() { # COMMAND OPTION...: run the command on the checkpoint
    name=$1
    shift
    case $name in
    generate) meg-generate --load gpt --input prompts --tokens-to-generate 2 --greedy "$@" ;;
    eval) meg-eval --task logprobs --load gpt --input prompts "$@" ;;
    convert) rm -rf saved && meg-convert --load-dir gpt --save-dir saved --saver megatron "$@" && cat saved/*/mp_rank_00/* ;;
    esac
}
same="--num-layers 2 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 16 --kv-channels 8 \
    --group-query-attention --num-query-groups 2 --position-embedding-type rope --use-rotary-position-embeddings --swiglu \
    --norm-epsilon 0.000001 --layernorm-epsilon 1e-6 --model gpt --hidden-dropout 0.3 --init-method-std 1"
for name in generate eval convert; do
    run $name >want 2>/dev/null
    # shellcheck disable=SC2086 # a list of options
    status "meg-$name accepts the options of the checkpoint" 0 run $name $same
    ok "meg-$name: they do not change the output" cmp want out
    # differs OPTION VALUE SAVED
    while read -r option value saved given; do
        # shellcheck disable=SC2086 # `value` is - for a flag
        status "meg-$name refuses $option $value" 2 run $name $option ${value#-}
        like "meg-$name: the message has both values of $option" "$(cat err)" \
            "^meg-$name: gpt/iter_0000001: $option is $saved in the checkpoint, but ${given:-$value} on the command line; omit"
    done <<-end
	--num-layers 3 2
	--hidden-size 64 32
	--num-attention-heads 8 4
	--max-position-embeddings 1024 16
	--num-query-groups 4 2
	--rotary-base 500000 10000.0 500000.0
	--norm-epsilon 1e-5 1e-06 1e-05
	--position-embedding-type learned_absolute rope
	--untie-embeddings-and-output-weights - no yes
	--model bert gpt
	end
    status "meg-$name refuses a value that is no number" 2 run $name --num-layers two
    status "meg-$name names all differences" 2 run $name --num-layers 3 --hidden-size 64
    like "meg-$name: one line has both" "$(cat err)" '--num-layers is 2 .*; --hidden-size is 32 '
    run $name --dump-config >conf
    status "meg-$name reads its --dump-config" 0 run $name --config conf
done
for name in generate eval; do
    status "meg-$name accepts layout options of 1" 0 run $name --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
        --micro-batch-size 1 --recompute --no-load-optim --finetune
    is "meg-$name: one warning names them" "$(grep -c 'no effect.*: --tensor-model-parallel-size, .*--finetune' err)" 1
    status "meg-$name refuses a layout of 2" 2 run $name --tensor-model-parallel-size 2
    like "meg-$name says why" "$(cat err)" '--tensor-model-parallel-size: a model is loaded on one device, in any layout'
done
status 'meg-generate names the server' 2 run generate --port 5000
like 'the message has the feature' "$(cat err)" '--port: not supported yet: the REST server'
status 'meg-generate names generation without a prompt' 2 run generate --num-samples 2 --genfile f
status 'meg-eval names tasks that are not supported' 2 meg-eval --task LAMBADA --load gpt --strict-lambada
like 'the message has the task' "$(cat err)" '--task LAMBADA: not supported yet: WikiText, LAMBADA'

# ---- merge_mp_partitions ----
meg-convert -q --load-dir gpt --save-dir tp2 --saver megatron --target-tensor-parallel-size 2
meg-convert -q --load-dir gpt --save-dir want-tp1 --saver megatron --target-tensor-parallel-size 1
status 'meg-convert accepts the options of merge_mp_partitions' 0 meg-convert --model-type GPT --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 --tokenizer-type NullTokenizer --num-layers 2 --hidden-size 32 --num-attention-heads 4 \
    --seq-length 16 --max-position-embeddings 16 --load tp2 --save tp1 --true-vocab-size 100
ok 'the partitions are merged' cmp tp1/iter_0000001/mp_rank_00/model_optim_rng.pt want-tp1/iter_0000001/mp_rank_00/model_optim_rng.pt
status 'a target pipeline size is obeyed' 0 meg-convert --model-type GPT --tensor-model-parallel-size 2 --load tp2 --save pp2 \
    --target-pipeline-model-parallel-size 2 --true-vocab-size 100
ok 'there are two stages' test -f pp2/iter_0000001/mp_rank_00_001/model_optim_rng.pt
printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n' >vocab.txt
status 'the vocabulary of a BERT is counted' 2 meg-convert --load tp2 --save x --vocab-file vocab.txt --true-vocab-size 100
like 'it has 7 tokens' "$(cat err)" 'contradicts --vocab-file vocab.txt, which has 7 tokens'
done_testing
