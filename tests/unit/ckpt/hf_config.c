/*
 * config.json of each family in Hugging Face's format has every setting of the model.  All values are distinct and none
 * is a default, so that a missing member, or one with the value of another option, differs.
 */
#define _GNU_SOURCE /* memmem in ckpt_convert.h */
#include "ckpt_convert.h"

#define SIZES "num-layers = 3\nhidden-size = 8\nffn-hidden-size = 12\nnum-attention-heads = 4\n"
#define OTHERS                                                                                                         \
    "max-position-embeddings = 7\nnorm-epsilon = 0.25\ninit-method-std = 0.0625\nhidden-dropout = 0.375\n"             \
    "attention-dropout = 0.625\n"
#define LLAMA                                                                                                          \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = yes\ndisable-bias-linear = yes\n"               \
    "untie-embeddings-and-output-weights = yes\nnum-query-groups = 2\ngroup-query-attention = yes\n"                   \
    "kv-channels = 6\nrotary-base = 5000\n"
#define T5                                                                                                             \
    "model = t5\ndecoder-num-layers = 5\nkv-channels = 6\nposition-embedding-type = relative\n"                        \
    "relative-attention-num-buckets = 10\nrelative-attention-max-distance = 20\nnormalization = RMSNorm\n"             \
    "disable-bias-linear = yes\nsoftmax-scale = 1\n"

static const struct {
    const char *options, *config;
} cases[] = {
    { SIZES OTHERS,
      "{'activation_function': 'gelu_new', 'architectures': ['GPT2LMHeadModel'], 'attn_pdrop': 0.625, 'embd_pdrop': "
      "0.375, 'initializer_range': 0.0625, 'layer_norm_epsilon': 0.25, 'model_type': 'gpt2', 'n_ctx': 7, 'n_embd': 8, "
      "'n_head': 4, 'n_inner': 12, 'n_layer': 3, 'n_positions': 7, 'resid_pdrop': 0.375, 'tie_word_embeddings': true, "
      "'torch_dtype': 'float32', 'vocab_size': 11}" },
    { SIZES OTHERS "no-bias-gelu-fusion = yes\nuntie-embeddings-and-output-weights = yes\n",
      "{'activation_function': 'gelu', 'architectures': ['GPT2LMHeadModel'], 'attn_pdrop': 0.625, 'embd_pdrop': "
      "0.375, 'initializer_range': 0.0625, 'layer_norm_epsilon': 0.25, 'model_type': 'gpt2', 'n_ctx': 7, 'n_embd': 8, "
      "'n_head': 4, 'n_inner': 12, 'n_layer': 3, 'n_positions': 7, 'resid_pdrop': 0.375, 'tie_word_embeddings': "
      "false, 'torch_dtype': 'float32', 'vocab_size': 11}" },
    { SIZES OTHERS LLAMA "hidden-dropout = 0\nuse-rope-scaling = yes\nrope-scaling-factor = 16\n",
      "{'architectures': ['LlamaForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.625, 'head_dim': 6, "
      "'hidden_act': 'silu', 'hidden_size': 8, 'initializer_range': 0.0625, 'intermediate_size': 12, "
      "'max_position_embeddings': 7, 'mlp_bias': false, 'model_type': 'llama', 'num_attention_heads': 4, "
      "'num_hidden_layers': 3, 'num_key_value_heads': 2, 'rms_norm_eps': 0.25, 'rope_scaling': {'factor': 16.0, "
      "'high_freq_factor': 4.0, 'low_freq_factor': 1.0, 'original_max_position_embeddings': 8192, 'rope_type': "
      "'llama3'}, 'rope_theta': 5000.0, 'tie_word_embeddings': false, 'torch_dtype': 'float32', 'vocab_size': 11}" },
    { SIZES OTHERS LLAMA "hidden-dropout = 0\nadd-qkv-bias = yes\nrotary-seq-len-interpolation-factor = 9\n",
      "{'architectures': ['Qwen2ForCausalLM'], 'attention_dropout': 0.625, 'head_dim': 6, 'hidden_act': 'silu', "
      "'hidden_size': 8, 'initializer_range': 0.0625, 'intermediate_size': 12, 'max_position_embeddings': 7, "
      "'model_type': 'qwen2', 'num_attention_heads': 4, 'num_hidden_layers': 3, 'num_key_value_heads': 2, "
      "'rms_norm_eps': 0.25, 'rope_scaling': {'factor': 9.0, 'rope_type': 'linear'}, 'rope_theta': 5000.0, "
      "'tie_word_embeddings': false, 'torch_dtype': 'float32', 'use_sliding_window': false, 'vocab_size': 11}" },
    { SIZES OTHERS "model = bert\napply-residual-connection-post-layernorm = yes\nno-bias-gelu-fusion = yes\n",
      "{'architectures': ['BertForPreTraining'], 'attention_probs_dropout_prob': 0.625, 'hidden_act': 'gelu', "
      "'hidden_dropout_prob': 0.375, 'hidden_size': 8, 'initializer_range': 0.0625, 'intermediate_size': 12, "
      "'layer_norm_eps': 0.25, 'max_position_embeddings': 7, 'model_type': 'bert', 'num_attention_heads': 4, "
      "'num_hidden_layers': 3, 'pad_token_id': 0, 'position_embedding_type': 'absolute', 'tie_word_embeddings': true, "
      "'torch_dtype': 'float32', 'type_vocab_size': 2, 'vocab_size': 11}" },
    { SIZES OTHERS "model = bert\nopenai-gelu = yes\n",
      "{'architectures': ['MegatronBertForPreTraining'], 'attention_probs_dropout_prob': 0.625, 'hidden_act': "
      "'gelu_new', 'hidden_dropout_prob': 0.375, 'hidden_size': 8, 'initializer_range': 0.0625, 'intermediate_size': "
      "12, 'layer_norm_eps': 0.25, 'max_position_embeddings': 7, 'model_type': 'megatron-bert', "
      "'num_attention_heads': 4, 'num_hidden_layers': 3, 'pad_token_id': 0, 'position_embedding_type': 'absolute', "
      "'tie_word_embeddings': true, 'torch_dtype': 'float32', 'type_vocab_size': 2, 'vocab_size': 11}" },
    { SIZES OTHERS T5 "activation-func = relu\nlogit-multiplier = 0.35355339059327379\n",
      "{'architectures': ['T5ForConditionalGeneration'], 'd_ff': 12, 'd_kv': 6, 'd_model': 8, "
      "'decoder_start_token_id': 0, 'dense_act_fn': 'relu', 'dropout_rate': 0.375, 'eos_token_id': 1, "
      "'feed_forward_proj': 'relu', 'initializer_factor': 1.0, 'is_encoder_decoder': true, 'is_gated_act': false, "
      "'layer_norm_epsilon': 0.25, 'model_type': 't5', 'n_positions': 7, 'num_decoder_layers': 5, 'num_heads': 4, "
      "'num_layers': 3, 'pad_token_id': 0, 'relative_attention_max_distance': 20, 'relative_attention_num_buckets': "
      "10, 'scale_decoder_outputs': true, 'tie_word_embeddings': true, 'torch_dtype': 'float32', 'vocab_size': 11}" },
    { SIZES OTHERS T5 "glu-activation = geglu\nopenai-gelu = yes\nuntie-embeddings-and-output-weights = yes\n",
      "{'architectures': ['T5ForConditionalGeneration'], 'd_ff': 12, 'd_kv': 6, 'd_model': 8, "
      "'decoder_start_token_id': 0, 'dense_act_fn': 'gelu_new', 'dropout_rate': 0.375, 'eos_token_id': 1, "
      "'feed_forward_proj': 'gated-gelu', 'initializer_factor': 1.0, 'is_encoder_decoder': true, 'is_gated_act': "
      "true, 'layer_norm_epsilon': 0.25, 'model_type': 't5', 'n_positions': 7, 'num_decoder_layers': 5, 'num_heads': "
      "4, 'num_layers': 3, 'pad_token_id': 0, 'relative_attention_max_distance': 20, "
      "'relative_attention_num_buckets': 10, 'scale_decoder_outputs': false, 'tie_word_embeddings': false, "
      "'torch_dtype': 'float32', 'vocab_size': 11}" },
};

/* Return the JSON value of text, in which strings have single quotes. */
static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    json_t *v;

    for (char *s = copy; *s; s++)
        *s = *s == '\'' ? '"' : *s;
    v = json_loads(copy, 0, NULL);
    free(copy);
    assert_non_null(v);
    return v;
}

static void config_has_every_setting(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *want = parse(cases[i].config), *got;
        struct ckpt_fixture b;
        struct meg_err e;

        begin_model(&b);
        if (meg_opt_apply((const struct meg_optgroup[]){ { "model", meg_model_opts, &b.m }, { 0 } }, cases[i].options,
                          "case", &e) < 0)
            fail_msg("%s", e.msg);
        b.m.vocab_size = 11;
        end_model(&b, 1);
        export_hf_ok(&b, "out");
        got = json_load_file("out/config.json", 0, NULL);
        if (!json_equal(got, want)) {
            char *text = json_dumps(got, JSON_SORT_KEYS);

            fail_msg("case %zu: config.json is %s", i, text);
        }
        json_decref(got);
        json_decref(want);
        free_fixture(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(config_has_every_setting) };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
