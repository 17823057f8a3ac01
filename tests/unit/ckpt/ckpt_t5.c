/*
 * Import and export of T5: Hugging Face's t5, and Megatron's per-rank checkpoints.  Round trips, names of other files,
 * stored copies of tensors, settings, refusals.
 */
#define _GNU_SOURCE /* memmem */
#include "ckpt_convert.h"
#include "ckpt_pt_builder.h"
#include <math.h>
#include "ckpt/megatron/pt.h"

/* Keep the defaults, which are Megatron's T5: learned positions, LayerNorm, biases, tied embeddings. */
static void set_megatron(struct meg_model_conf *m)
{
    (void)m;
}

static void set_relative(struct meg_model_conf *m)
{
    m->position_embedding_type = MEG_POSITION_RELATIVE;
    m->relative_attention_num_buckets = 6;
    m->relative_attention_max_distance = 20;
}

static void set_untied(struct meg_model_conf *m)
{
    m->is_untied = true;
}

/* Set the options that T5 v1.0 and v1.1 have in common. */
static void set_rms_norm(struct meg_model_conf *m)
{
    set_relative(m);
    m->normalization = MEG_NORM_RMS;
    m->norm_epsilon = 1e-6;
    m->has_bias = false;
    m->attn.scale = 1;
}

static void set_v1_0(struct meg_model_conf *m)
{
    set_rms_norm(m);
    m->activation_func = MEG_ACTIVATION_FUNC_RELU;
    m->logit_multiplier = 0.25;
}

static void set_v1_1(struct meg_model_conf *m)
{
    set_rms_norm(m);
    m->glu_activation = MEG_GLU_ACTIVATION_GEGLU;
    m->openai_gelu = true;
    m->is_untied = true;
}

/* Create a T5 of 2 encoder layers, 4 decoder layers, and 4 heads of 6 channels; tune modifies its configuration. */
static void make_t5(struct ckpt_fixture *b, int seed, void (*tune)(struct meg_model_conf *m))
{
    begin_model(b);
    b->m.family = MEG_FAMILY_T5;
    b->m.num_layers = 2;
    b->m.decoder_num_layers = 4;
    b->m.hidden_size = 16;
    b->m.mlp.f = 12;
    b->m.attn.a = 4;
    b->m.attn.d = 6;
    b->m.max_position_embeddings = 8;
    b->m.vocab_size = 11;
    tune(&b->m);
    end_model(b, seed);
}

/* ---- Hugging Face ---- */

/* Import a folder that another program wrote and export it again: the weights and settings are unchanged. */
static void folders_of_other_programs_are_reproduced(void **state)
{
    (void)state;
    assert_folder_is_reproduced("t5-v1_0-tiny");
    assert_folder_is_reproduced("t5-v1_1-tiny");
}

/* transformers 5 writes different members to config.json for the same model. */
static void newer_settings_mean_the_same_model(void **state)
{
    struct meg_str weights = read_bytes(golden("models/t5-v1_0-tiny/model.safetensors")), config, again;
    struct meg_model_conf m[2];
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    convert_hf(golden("models/t5-v1_0-tiny"), "set");
    c = open_ok("set", MEG_UNSET);
    assert_int_equal(meg_ckpt_model_conf(c, &m[0], &e), 0);
    meg_ckpt_close(c);
    config = read_bytes(golden("models/t5-v1_0-tiny/config-v5.json"));
    put_file("set/config.json", config.s, config.n);
    c = open_ok("set", MEG_UNSET);
    assert_int_equal(meg_ckpt_model_conf(c, &m[1], &e), 0);
    meg_ckpt_close(c);
    assert_same_options(&m[0], &m[1]);
    convert_hf("set", "again");
    again = read_bytes("again/model.safetensors");
    assert_int_equal(again.n, weights.n);
    assert_memory_equal(again.s, weights.s, weights.n);
    meg_str_free(&weights);
    meg_str_free(&config);
    meg_str_free(&again);
}

static void set_gelu(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->activation_func = MEG_ACTIVATION_FUNC_GELU;
}

static void set_gelu_new(struct meg_model_conf *m)
{
    set_gelu(m);
    m->openai_gelu = true;
}

static void set_reglu(struct meg_model_conf *m)
{
    set_v1_1(m);
    m->glu_activation = MEG_GLU_ACTIVATION_REGLU;
    m->openai_gelu = false;
}

static void set_swiglu(struct meg_model_conf *m)
{
    set_v1_1(m);
    m->glu_activation = MEG_GLU_ACTIVATION_NONE;
    m->swiglu = true;
    m->openai_gelu = false;
}

static void hf_round_trip_is_bit_identical(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *config; /* strings expected in config.json, separated by | */
    } variant[] = {
        { set_v1_0, "\"feed_forward_proj\": \"relu\"|\"is_gated_act\": false|\"tie_word_embeddings\": true|"
                    "\"num_layers\": 2|\"num_decoder_layers\": 4|\"d_kv\": 6|\"scale_decoder_outputs\": true" },
        { set_v1_1, "\"T5ForConditionalGeneration\"|\"feed_forward_proj\": \"gated-gelu\"|\"is_gated_act\": true|"
                    "\"dense_act_fn\": \"gelu_new\"|\"tie_word_embeddings\": false|\"relative_attention_num_buckets\": "
                    "6|\"relative_attention_max_distance\": 20|\"scale_decoder_outputs\": false" },
        { set_gelu, "\"feed_forward_proj\": \"gelu\"|\"dense_act_fn\": \"gelu\"" },
        { set_gelu_new, "\"feed_forward_proj\": \"gelu_new\"" },
        { set_reglu, "\"feed_forward_proj\": \"gated-relu\"|\"dense_act_fn\": \"relu\"" },
        { set_swiglu, "\"feed_forward_proj\": \"gated-silu\"|\"dense_act_fn\": \"silu\"" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        struct meg_str config;
        struct ckpt_fixture a;

        make_t5(&a, 1, variant[i].tune);
        export_hf_ok(&a, "out");
        config = read_bytes("out/config.json");
        assert_contains(config.s, variant[i].config);
        check_equal(&a, "out");
        meg_str_free(&config);
        free_fixture(&a);
    }
}

/*
 * Older files contain copies of the word embedding.  They also contain a relative bias of cross-attention, which
 * Hugging Face ignores.
 */
static void reads_copies_and_the_unused_table(void **state)
{
    static const float unused[24] = { 1 };
    struct ckpt_fixture a;
    struct meg_ckpt *c = NULL;
    struct meg_err e;
    struct meg_st_tensor more[] = {
        { .name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
          .dtype = "F32",
          .ndim = 2,
          .dim = { 6, 4 },
          .data = unused },
        { .name = "decoder.embed_tokens.weight", .dtype = "F32", .ndim = 2, .dim = { 11, 16 } },
        { .name = "encoder.embed_tokens.weight", .dtype = "F32", .ndim = 2, .dim = { 11, 16 } },
        { .name = "lm_head.weight", .dtype = "F32", .ndim = 2, .dim = { 11, 16 } },
    };

    (void)state;
    make_t5(&a, 1, set_v1_0);
    export_hf_ok(&a, "out");
    for (int i = 1; i < 4; i++)
        more[i].data = a.w + meg_params_find(&a.p, "embedding.word_embeddings.weight")->offset;
    change_tensors(keep, more, 4);
    check_equal(&a, "set");
    more[3].data = a.w + 16;
    change_tensors(keep, more, 4);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 mismatched: lm_head.weight differs from the word embedding");
    more[2].data = a.w + 16;
    change_tensors(keep, more, 3);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 mismatched: encoder.embed_tokens.weight differs from embedding.word_embeddings.weight");
    free_fixture(&a);
}

static void drop_decoder_table(struct meg_st_tensor *t)
{
    if (strstr(t->name, "decoder.block.0.layer.0.SelfAttention.relative"))
        t->name = NULL;
}

static void drop_head(struct meg_st_tensor *t)
{
    if (strstr(t->name, "lm_head"))
        t->name = NULL;
}

static void cut_value(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "decoder.block.3.layer.1.EncDecAttention.v.weight") == 0)
        t->dim[0] = 12;
}

static void rename_gate(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "encoder.block.1.layer.1.DenseReluDense.wi_0.weight") == 0)
        t->name = "encoder.block.1.layer.1.DenseReluDense.wi.weight";
}

static void names_wrong_tensors(void **state)
{
    static const struct {
        void (*change)(struct meg_st_tensor *t);
        const char *message;
    } bad[] = {
        { drop_decoder_table, "1 missing: decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" },
        { drop_head, "1 missing: lm_head.weight; the checkpoint must have the tensors of T5ForConditionalGeneration" },
        { cut_value, "1 mismatched: decoder.block.3.layer.1.EncDecAttention.v.weight has shape [12,16], expected "
                     "[24,16]" },
        { rename_gate, "1 missing: encoder.block.1.layer.1.DenseReluDense.wi_0.weight; 1 unknown: "
                       "encoder.block.1.layer.1.DenseReluDense.wi.weight" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_v1_1);
    export_hf_ok(&a, "out");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_change_refused(bad[i].change, bad[i].message);
    free_fixture(&a);
}

#define CONFIG(more)                                                                                                   \
    "{\"model_type\":\"t5\",\"num_layers\":2,\"d_model\":16,\"d_ff\":12,\"num_heads\":4,\"vocab_size\":11" more "}"
#define V1_0(more) CONFIG(",\"num_decoder_layers\":4,\"d_kv\":6,\"relative_attention_num_buckets\":6" more)

static void reads_settings_and_their_defaults(void **state)
{
    struct meg_model_conf m;
    struct meg_ckpt *c;
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_t5(&a, 1, set_v1_0);
    export_hf_ok(&a, "set");
    if (open_with_config(V1_0(",\"use_cache\":true"), &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    assert_true(m.family == MEG_FAMILY_T5 && !m.is_untied && m.activation_func == MEG_ACTIVATION_FUNC_RELU);
    assert_true(m.norm_epsilon == 1e-6 && m.hidden_dropout == 0.1 && m.attn.dropout == 0.1);
    assert_true(m.attn.scale == 1 && m.logit_multiplier == 0.25 && !m.has_bias && m.normalization == MEG_NORM_RMS);
    assert_int_equal(m.max_position_embeddings, 512);
    assert_int_equal(m.relative_attention_max_distance, 128);
    meg_ckpt_close(c);
    if (open_with_config(V1_0(",\"dropout_rate\":0.3"), &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    assert_true(m.hidden_dropout == 0.3 && m.attn.dropout == 0.3);
    meg_ckpt_close(c);
    free_fixture(&a);
}

/* transformers 5 writes tie_word_embeddings as true for T5 v1.1, too, so scale_decoder_outputs is decisive. */
static void unscaled_outputs_imply_an_untied_head(void **state)
{
    static const char config[] =
        V1_0(",\"feed_forward_proj\":\"gated-gelu\",\"tie_word_embeddings\":true,\"scale_decoder_outputs\":false");
    struct meg_model_conf m;
    struct meg_ckpt *c;
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_t5(&a, 1, set_v1_1);
    export_hf_ok(&a, "set");
    if (open_with_config(config, &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    assert_true(m.is_untied && isnan(m.logit_multiplier));
    meg_ckpt_close(c);
    free_fixture(&a);
}

static void refuses_unsupported_settings(void **state)
{
    static const struct {
        const char *config, *message;
    } bad[] = {
        { "{\"model_type\":\"t5\",\"num_layers\":2}", "\"d_model\" is missing" },
        { CONFIG(",\"feed_forward_proj\":\"gated-tanh\""), "unsupported feed_forward_proj gated-tanh; expected relu" },
        { CONFIG(",\"tie_word_embeddings\":false,\"scale_decoder_outputs\":true"), "only tied embeddings" },
        { CONFIG(",\"is_encoder_decoder\":false"), "is_encoder_decoder is false, but only true" },
        { CONFIG(",\"layer_norm_epsilon\":\"small\""), "layer_norm_epsilon" },
        { CONFIG(",\"relative_attention_num_buckets\":7"), "--relative-attention-num-buckets 7: must be even" },
        { CONFIG(",\"num_decoder_layers\":0"), "--decoder-num-layers 0: must be at least 1" },
        { CONFIG(",\"num_decoder_layers\":4"), "SelfAttention.q.weight has shape [24,16], expected [256,16]" },
        { CONFIG(",\"d_kv\":6,\"relative_attention_num_buckets\":6"), "unknown: decoder.block.2." },
        { V1_0(",\"feed_forward_proj\":\"gated-gelu\""), "missing: encoder.block.0.layer.1.DenseReluDense.wi_0" },
        { V1_0(",\"tie_word_embeddings\":false"), "1 missing: lm_head.weight" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_v1_0);
    export_hf_ok(&a, "set");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_config_refused(bad[i].config, bad[i].message);
    free_fixture(&a);
}

static void set_biases(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->has_bias = true;
}

static void set_default_scale(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->attn.scale = NAN;
}

static void set_scale_of_one(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->logit_multiplier = 1;
}

static void set_exact_geglu(struct meg_model_conf *m)
{
    set_v1_1(m);
    m->openai_gelu = false;
}

static void set_unscaled_logits(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->logit_multiplier = NAN;
}

static void set_other_scale(struct meg_model_conf *m)
{
    set_v1_0(m);
    m->logit_multiplier = 0.5;
}

static void set_scaled_logits(struct meg_model_conf *m)
{
    set_v1_1(m);
    m->logit_multiplier = 0.25;
}

static void refuses_to_export_what_hf_cannot_express(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *message;
    } bad[] = {
        { set_megatron,
          "Hugging Face's t5 format|--position-embedding-type learned_absolute would be read as relative|and " },
        { set_relative, "--normalization LayerNorm would be read as RMSNorm|--disable-bias-linear no" },
        { set_biases, "--disable-bias-linear no would be read as yes; use" },
        { set_default_scale, "--softmax-scale unset would be read as 1.0; use" },
        { set_exact_geglu, "--openai-gelu no would be read as yes; use" },
        { set_other_scale, "--logit-multiplier 0.5 would be read as unset; use" },
        { set_scaled_logits, "--logit-multiplier 0.25 would be read as unset; use" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_fixture b;

        make_t5(&b, 1, bad[i].tune);
        assert_export_refused(&b, bad[i].message);
        free_fixture(&b);
    }
}

/*
 * transformers 4 scales each tied output layer, and transformers 5 stores in scale_decoder_outputs whether it does.
 * Both read a copy of the word embedding with tie_word_embeddings false as the same model.
 */
static void an_unscaled_tied_output_is_written_untied(void **state)
{
    static void (*const tune[])(struct meg_model_conf *) = { set_unscaled_logits, set_scale_of_one };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ckpt_fixture a, b = { 0 };
        const struct meg_param *table, *head;
        struct meg_str config;
        struct meg_ckpt *c;
        struct meg_err e;

        make_t5(&a, 1, tune[i]);
        export_hf_ok(&a, "out");
        config = read_bytes("out/config.json");
        assert_contains(config.s, "\"scale_decoder_outputs\": false|\"tie_word_embeddings\": false");
        c = open_ok("out", MEG_UNSET);
        assert_int_equal(meg_ckpt_model_conf(c, &b.m, &e), 0);
        assert_true(b.m.is_untied && isnan(b.m.logit_multiplier));
        meg_model_params(&b.p, &b.m, &meg_mesh_one);
        b.w = new_params(&b.p, 2);
        if (load_f32_weights(c, &b.p, b.w, &e) < 0)
            fail_msg("%s", e.msg);
        table = meg_params_find(&a.p, "embedding.word_embeddings.weight");
        head = meg_params_find(&b.p, "output_layer.weight");
        assert_int_equal(head->numel, table->numel);
        assert_memory_equal(b.w + head->offset, a.w + table->offset, (size_t)table->numel * 4);
        meg_ckpt_close(c);
        meg_str_free(&config);
        free_fixture(&a);
        free_fixture(&b);
    }
}

static void set_gpt_relu(struct meg_model_conf *m)
{
    m->activation_func = MEG_ACTIVATION_FUNC_RELU;
}

static void set_gpt_geglu(struct meg_model_conf *m)
{
    m->glu_activation = MEG_GLU_ACTIVATION_GEGLU;
}

static void set_gpt_scale(struct meg_model_conf *m)
{
    m->attn.scale = 0.5;
}

static void other_families_do_not_have_settings_of_t5(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *message;
    } bad[] = {
        { set_gpt_relu, "gpt2 format|--activation-func relu would be read as gelu; use" },
        { set_gpt_geglu, "gpt2 format|--glu-activation geglu would be read as none; use" },
        { set_gpt_scale, "gpt2 format|--softmax-scale 0.5 would be read as unset; use" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_fixture b;

        begin_model(&b);
        b.m = small_gpt_conf(2, 8);
        bad[i].tune(&b.m);
        end_model(&b, 1);
        assert_export_refused(&b, bad[i].message);
        free_fixture(&b);
    }
}

/* The tokenizer's bos id is exported as decoder_start_token_id, which is imported as the bos id. */
static void the_first_token_of_the_decoder_is_bos(void **state)
{
    const struct meg_ckpt_tokenizer files = { .eod = 4, .bos = 3 };
    struct meg_ckpt_save_args s = { .dir = "tok", .tok = &files };
    struct meg_str config, generation;
    struct meg_ckpt *c;
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_t5(&a, 1, set_v1_1);
    s.model = &a.m;
    s.params = &a.p;
    s.weights.data = a.w;
    assert_int_equal(
        meg_ckpt_export_hf(&s, &(const struct meg_ckpt_hf_conf){ .lock = &(struct meg_dir_lock){ .was_empty = true } },
                           &e),
        0);
    config = read_bytes("tok/config.json");
    generation = read_bytes("tok/generation_config.json");
    assert_contains(config.s, "\"decoder_start_token_id\": 3|\"eos_token_id\": 4|\"pad_token_id\": 0");
    assert_contains(generation.s, "\"decoder_start_token_id\": 3|\"eos_token_id\": 4");
    assert_null(strstr(config.s, "bos_token_id"));
    c = open_ok("tok", MEG_UNSET);
    assert_int_equal(c->bos, 3);
    assert_int_equal(meg_ckpt_eod(c), 4);
    meg_ckpt_close(c);
    meg_str_free(&config);
    meg_str_free(&generation);
    free_fixture(&a);
}

/* A tokenizer.json is preferred to spiece.model, which has no tokens for the sentinels. */
static void the_tokenizer_follows_from_the_files(void **state)
{
    static const struct {
        const char *file, *type;
    } variant[] = { { "set/spiece.model", "GPTSentencePieceTokenizer" }, { "set/tokenizer.json", "PretrainedFromHF" } };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_v1_1);
    export_hf_ok(&a, "set");
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        struct meg_tok_conf tok = { .vocab_size = MEG_UNSET };
        struct meg_ckpt *c;
        struct meg_err e;

        put_file(variant[i].file, "\n\0x", 3);
        c = open_ok("set", MEG_UNSET);
        meg_ckpt_tok_conf(c, &tok);
        assert_string_equal(tok.type, variant[i].type);
        assert_contains(tok.tokenizer_model, "set/spiece.model");
        meg_ckpt_close(c);
        assert_int_equal(meg_ckpt_check_replaceable("set", "set", &e), 0);
    }
    free_fixture(&a);
}

/* ---- Megatron ---- */

/* With 3 stages, the encoder has the first; with 6 stages, it has the first two. */
static void every_parallel_size_has_the_same_weights(void **state)
{
    static void (*const tune[])(struct meg_model_conf *) = { set_megatron, set_untied, set_relative, set_v1_0,
                                                             set_v1_1 };

    (void)state;
    for (size_t i = 0; i < sizeof tune / sizeof *tune; i++)
        for (int names = i < 2 ? MEG_CKPT_NAMES_LEGACY : MEG_CKPT_NAMES_MCORE; names <= MEG_CKPT_NAMES_TE; names++)
            for (int64_t t = 1; t <= 2; t++)
                for (int64_t p = 1; p <= 6; p += p < 3 ? 2 : 3) {
                    struct ckpt_fixture a;
                    struct meg_ckpt *c;

                    make_t5(&a, 1, tune[i]);
                    export_ranks_ok(&a, t, p, (enum meg_ckpt_names)names);
                    check_equal(&a, "out");
                    c = open_ok("out", MEG_UNSET);
                    assert_int_equal(meg_ckpt_seq_length(c), 5);
                    assert_int_equal(meg_ckpt_decoder_seq_length(c), 4);
                    meg_ckpt_close(c);
                    free_fixture(&a);
                }
}

static void refuses_to_export_what_megatron_cannot_express(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        int64_t pipeline;
        enum meg_ckpt_names names;
        const char *message;
    } bad[] = {
        { set_megatron, 4, MEG_CKPT_NAMES_MCORE,
          "--target-pipeline-parallel-size 4: must divide the number of layers" },
        { set_megatron, 2, MEG_CKPT_NAMES_MCORE,
          "--target-pipeline-parallel-size 2: a stage of 3 layers would have layers of the encoder and of the decoder|"
          "for which the 2 encoder layers fill" },
        { set_relative, 1, MEG_CKPT_NAMES_LEGACY,
          "Megatron before core: --position-embedding-type relative would be read as learned_absolute|use" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_fixture a;
        struct meg_err e;

        make_t5(&a, 1, bad[i].tune);
        assert_int_equal(export_ranks(&a, "not", 1, bad[i].pipeline, bad[i].names, &e), MEG_EUSAGE);
        assert_contains(e.msg, bad[i].message);
        assert_int_equal(access("not", F_OK), -1);
        free_fixture(&a);
    }
}

#define STAGE(p) "out/iter_0000007/mp_rank_01_00" #p "/model_optim_rng.pt"

struct key_count {
    const char *path, *key;
    int count;
};

static void check_keys(const struct key_count *k, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct meg_str s = read_bytes(k[i].path);

        if (count_key(&s, k[i].key) != k[i].count)
            fail_msg("%s: %s: found %d times, expected %d", k[i].path, k[i].key, count_key(&s, k[i].key), k[i].count);
        meg_str_free(&s);
    }
}

/* The embedding is in the first stage of each stack, and the last stage has a copy of the tied weight. */
static void legacy_names_are_those_of_megatron(void **state)
{
    static const struct key_count keys[] = {
        { STAGE(0), "language_model", 1 },
        { STAGE(0), "embedding", 1 },
        { STAGE(0), "encoder", 1 },
        { STAGE(0), "decoder", 0 },
        { STAGE(0), "layers.1.post_attention_norm.weight", 1 },
        { STAGE(0), "final_norm.weight", 1 },
        { STAGE(1), "embedding", 1 },
        { STAGE(1), "encoder", 0 },
        { STAGE(1), "decoder", 1 },
        { STAGE(1), "layers.0.post_attention_norm.bias", 1 },
        { STAGE(1), "layers.1.post_inter_attention_norm.bias", 1 },
        { STAGE(1), "layers.1.inter_attention.query.weight", 1 },
        { STAGE(1), "layers.1.inter_attention.key_value.weight", 1 },
        { STAGE(1), "layers.1.inter_attention.dense.bias", 1 },
        { STAGE(1), "layers.2.inter_attention.dense.bias", 0 },
        { STAGE(1), "final_norm.weight", 0 },
        { STAGE(2), "embedding", 0 },
        { STAGE(2), "decoder", 1 },
        { STAGE(2), "final_norm.weight", 1 },
        { STAGE(2), "word_embeddings_for_head", 1 },
        { STAGE(2), "lm_head", 1 },
        { STAGE(2), "bias", 1 },
    };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_megatron);
    export_ranks_ok(&a, 2, 3, MEG_CKPT_NAMES_LEGACY);
    check_keys(keys, sizeof keys / sizeof *keys);
    free_fixture(&a);
}

/* The output layer is stored under two names, and each stage has the relative biases of encoder and decoder. */
static void core_names_and_settings_are_those_of_megatron(void **state)
{
    static const struct key_count keys[] = {
        { STAGE(0), "encoder.layers.1.mlp.linear_fc1.weight", 1 },
        { STAGE(0), "decoder_relative_pos_emb.relative_attention_bias.weight", 1 },
        { STAGE(1), "encoder_relative_pos_emb.relative_attention_bias.weight", 1 },
        { STAGE(1), "embedding.word_embeddings.weight", 1 },
        { STAGE(1), "decoder.layers.1.cross_attention.linear_kv.weight", 1 },
        { STAGE(1), "decoder.layers.1.pre_cross_attn_layernorm.weight", 1 },
        { STAGE(2), "lm_head.output_layer.bias", 1 },
        { STAGE(2), "output_layer.bias", 1 },
        { STAGE(2), "lm_head.output_layer.weight", 1 },
        { STAGE(2), "output_layer.weight", 1 },
        { STAGE(2), "embedding.word_embeddings.weight", 0 },
        { STAGE(0), "encoder_num_layers", 1 },
        { STAGE(0), "decoder_num_layers", 1 },
        { STAGE(0), "encoder_seq_length", 1 },
        { STAGE(0), "decoder_seq_length", 1 },
        { STAGE(0), "relative_attention_num_buckets", 1 },
        { STAGE(0), "relative_attention_max_distance", 1 },
        { STAGE(0), "pipeline_model_parallel_split_rank", 1 },
    };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_relative);
    export_ranks_ok(&a, 2, 3, MEG_CKPT_NAMES_MCORE);
    check_keys(keys, sizeof keys / sizeof *keys);
    free_fixture(&a);
}

/* Keys of all heads of a rank precede the values in version 0; in version 1, they alternate by channel. */
static void key_value_rows_of_older_versions_are_reordered(void **state)
{
    enum { D = 6, H = 16, ROWS = 4 * D }; /* rows of a rank: keys and values of 2 heads */
    static const char three[] = "checkpoint_versionG\x40\x08\0\0\0\0\0\0",
                      older[2][sizeof three] = { "checkpoint_versionG\0\0\0\0\0\0\0\0",
                                                 "checkpoint_versionG\x3f\xf0\0\0\0\0\0\0" };
    struct ckpt_fixture a, b;

    (void)state;
    make_t5(&a, 1, set_megatron);
    make_t5(&b, 2, set_megatron);
    for (int version = 0; version < 2; version++) {
        const struct meg_param *kv;
        struct meg_ckpt *c;
        struct meg_err e;

        export_ranks_ok(&a, 2, 1, MEG_CKPT_NAMES_LEGACY);
        for (int t = 0; t < 2; t++)
            patch(t ? "out/iter_0000007/mp_rank_01/model_optim_rng.pt"
                    : "out/iter_0000007/mp_rank_00/model_optim_rng.pt",
                  three, older[version], sizeof three - 1);
        c = open_ok("out", MEG_UNSET);
        if (load_f32_weights(c, &b.p, b.w, &e) < 0)
            fail_msg("%s", e.msg);
        kv = meg_params_find(&b.p, "decoder.layers.3.cross_attention.linear_kv.weight");
        for (int r = 0; r < 2 * ROWS; r++) { /* native row r of all ranks: head, key or value, channel */
            const int rank = r / ROWS, head = r / (2 * D) % 2, is_value = r / D % 2, channel = r % D;
            const int from = version ? (head * D + channel) * 2 + is_value : (is_value * 2 + head) * D + channel;

            assert_memory_equal(b.w + kv->offset + r * H, a.w + kv->offset + (rank * ROWS + from) * H, H * 4);
        }
        meg_ckpt_close(c);
    }
    free_fixture(&a);
    free_fixture(&b);
}

/*
 * Write a file of one rank with the tensors of a under other names.  Each native prefix is replaced by the last row of
 * `names` that matches.  If b is not NULL, its parameter more[0] is added under the name more[1].
 */
static void put_renamed(const struct ckpt_fixture *a, const char *const names[][2], size_t n, const char *const more[2],
                        const struct ckpt_fixture *b)
{
    struct pt_builder f = { 0 };
    const struct {
        const char *name;
        int64_t value;
    } args[] = { { "encoder_num_layers", 1 },     { "decoder_num_layers", 1 }, { "hidden_size", 16 },
                 { "ffn_hidden_size", 12 },       { "kv_channels", 6 },        { "num_attention_heads", 4 },
                 { "max_position_embeddings", 8 } };
    struct meg_err e;

    assert_int_equal(meg_mkdirs("older/mp_rank_00", &e), 0);
    meg_pickle_begin(&f.pickle);
    meg_pickle_put_dict_begin(&f.pickle);
    meg_pickle_put_str(&f.pickle, "args");
    meg_pickle_put_namespace_begin(&f.pickle);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        meg_pickle_put_str(&f.pickle, args[i].name);
        meg_pickle_put_int(&f.pickle, args[i].value);
    }
    meg_pickle_put_namespace_end(&f.pickle);
    meg_pickle_put_str(&f.pickle, "checkpoint_version");
    meg_pickle_put_int(&f.pickle, 3);
    meg_pickle_put_str(&f.pickle, "model");
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < a->p.n; i++) {
        const char *name = a->p.row[i].name;
        char foreign[CKPT_NAME_CHARS];

        snprintf(foreign, sizeof foreign, "%s", name);
        for (size_t k = 0; k < n; k++)
            if (strncmp(name, names[k][0], strlen(names[k][0])) == 0)
                snprintf(foreign, sizeof foreign, "%s%s", names[k][1], name + strlen(names[k][0]));
        pt_add_param(&f, a, name, foreign);
    }
    if (b)
        pt_add_param(&f, b, more[0], more[1]);
    meg_pickle_put_dict_end(&f.pickle);
    pt_end(&f, "older/mp_rank_00/model_optim_rng.pt");
}

static void set_one_layer(struct meg_model_conf *m)
{
    m->num_layers = m->decoder_num_layers = 1;
}

static void reads_older_legacy_names(void **state)
{
    static const char *const older[][2] = {
        { "embedding.", "language_model.embedding." },
        { "encoder.", "language_model.encoder." },
        { "encoder.layers.0.pre_mlp_layernorm.", "language_model.encoder.layers.0.post_attention_layernorm." },
        { "decoder.", "language_model.decoder." },
        { "decoder.layers.0.self_attention.linear_qkv.", "language_model.decoder.layers.0.attention.query_key_value." },
        { "decoder.layers.0.pre_cross_attn_layernorm.", "language_model.decoder.layers.0.post_attention_layernorm." },
        { "decoder.layers.0.cross_attention.linear_q.", "language_model.decoder.layers.0.inter_attention.query." },
        { "decoder.layers.0.pre_mlp_layernorm.", "language_model.decoder.layers.0.post_inter_attention_layernorm." },
        { "output_layer.bias", "lm_head.bias" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_t5(&a, 1, set_one_layer);
    put_renamed(&a, older, sizeof older / sizeof *older, NULL, NULL);
    check_equal(&a, "older");
    free_fixture(&a);
}

/*
 * T5Model of Megatron core loads a file with strict=True, so the keys must be those of its state_dict().  The list was
 * printed by Megatron core 0.10.0, 0.12.1 and 0.16.1 for one layer each, learned positions and tied embeddings.
 */
static void core_files_have_the_keys_of_the_state_dict(void **state)
{
    static const char *const keys[] = {
        "model.embedding.word_embeddings.weight",
        "model.embedding.position_embeddings.weight",
        "model.position_embeddings.weight",
        "model.encoder.layers.0.input_layernorm.weight",
        "model.encoder.layers.0.input_layernorm.bias",
        "model.encoder.layers.0.self_attention.linear_proj.weight",
        "model.encoder.layers.0.self_attention.linear_proj.bias",
        "model.encoder.layers.0.self_attention.linear_qkv.weight",
        "model.encoder.layers.0.self_attention.linear_qkv.bias",
        "model.encoder.layers.0.pre_mlp_layernorm.weight",
        "model.encoder.layers.0.pre_mlp_layernorm.bias",
        "model.encoder.layers.0.mlp.linear_fc1.weight",
        "model.encoder.layers.0.mlp.linear_fc1.bias",
        "model.encoder.layers.0.mlp.linear_fc2.weight",
        "model.encoder.layers.0.mlp.linear_fc2.bias",
        "model.encoder.final_layernorm.weight",
        "model.encoder.final_layernorm.bias",
        "model.decoder.layers.0.input_layernorm.weight",
        "model.decoder.layers.0.input_layernorm.bias",
        "model.decoder.layers.0.self_attention.linear_proj.weight",
        "model.decoder.layers.0.self_attention.linear_proj.bias",
        "model.decoder.layers.0.self_attention.linear_qkv.weight",
        "model.decoder.layers.0.self_attention.linear_qkv.bias",
        "model.decoder.layers.0.pre_cross_attn_layernorm.weight",
        "model.decoder.layers.0.pre_cross_attn_layernorm.bias",
        "model.decoder.layers.0.cross_attention.linear_proj.weight",
        "model.decoder.layers.0.cross_attention.linear_proj.bias",
        "model.decoder.layers.0.cross_attention.linear_q.weight",
        "model.decoder.layers.0.cross_attention.linear_q.bias",
        "model.decoder.layers.0.cross_attention.linear_kv.weight",
        "model.decoder.layers.0.cross_attention.linear_kv.bias",
        "model.decoder.layers.0.pre_mlp_layernorm.weight",
        "model.decoder.layers.0.pre_mlp_layernorm.bias",
        "model.decoder.layers.0.mlp.linear_fc1.weight",
        "model.decoder.layers.0.mlp.linear_fc1.bias",
        "model.decoder.layers.0.mlp.linear_fc2.weight",
        "model.decoder.layers.0.mlp.linear_fc2.bias",
        "model.decoder.final_layernorm.weight",
        "model.decoder.final_layernorm.bias",
        "model.lm_head.output_layer.bias",
        "model.output_layer.bias",
    };
    struct ckpt_fixture a;
    struct meg_st *st;
    struct meg_err e;

    (void)state;
    make_t5(&a, 1, set_one_layer);
    export_ranks_ok(&a, 1, 1, MEG_CKPT_NAMES_MCORE);
    assert_int_equal(meg_pt_open_tensors(&st, "out/iter_0000007/mp_rank_00/model_optim_rng.pt", &e), 0);
    assert_int_equal(st->n, sizeof keys / sizeof *keys);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!meg_st_find(st, keys[i]))
            fail_msg("%s is missing", keys[i]);
    meg_st_close(st);
    free_fixture(&a);
}

/*
 * Files with core names have two names for the output layer and the position embedding.  The second name alone is
 * accepted; a copy that differs is refused.
 */
static void reads_both_names_of_copies(void **state)
{
    static const struct {
        const char *renamed[1][2], *more[2], *message;
    } copy[] = { { { { "output_layer.", "lm_head.output_layer." } },
                   { "output_layer.bias", "output_layer.bias" },
                   "tensor output_layer.bias differs from its copy in older/mp_rank_00/model_optim_rng.pt" },
                 { { { "embedding.position_embeddings.", "position_embeddings." } },
                   { "embedding.position_embeddings.weight", "embedding.position_embeddings.weight" },
                   "tensor embedding.position_embeddings.weight differs from its copy in older/" } };
    struct ckpt_fixture a, b;
    struct meg_ckpt *c = NULL;
    struct meg_err e;

    (void)state;
    make_t5(&a, 1, set_one_layer);
    make_t5(&b, 2, set_one_layer);
    for (size_t i = 0; i < sizeof copy / sizeof *copy; i++) {
        put_renamed(&a, copy[i].renamed, 1, NULL, NULL);
        check_equal(&a, "older");
        put_renamed(&a, copy[i].renamed, 1, copy[i].more, &a);
        check_equal(&a, "older");
        put_renamed(&a, copy[i].renamed, 1, copy[i].more, &b);
        assert_int_equal(meg_ckpt_open(&c, "older", MEG_UNSET, &e), MEG_EFORMAT);
        assert_contains(e.msg, copy[i].message);
    }
    free_fixture(&a);
    free_fixture(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_of_other_programs_are_reproduced),
        cmocka_unit_test(newer_settings_mean_the_same_model),
        cmocka_unit_test(hf_round_trip_is_bit_identical),
        cmocka_unit_test(reads_copies_and_the_unused_table),
        cmocka_unit_test(names_wrong_tensors),
        cmocka_unit_test(reads_settings_and_their_defaults),
        cmocka_unit_test(unscaled_outputs_imply_an_untied_head),
        cmocka_unit_test(refuses_unsupported_settings),
        cmocka_unit_test(refuses_to_export_what_hf_cannot_express),
        cmocka_unit_test(an_unscaled_tied_output_is_written_untied),
        cmocka_unit_test(other_families_do_not_have_settings_of_t5),
        cmocka_unit_test(the_first_token_of_the_decoder_is_bos),
        cmocka_unit_test(the_tokenizer_follows_from_the_files),
        cmocka_unit_test(every_parallel_size_has_the_same_weights),
        cmocka_unit_test(refuses_to_export_what_megatron_cannot_express),
        cmocka_unit_test(legacy_names_are_those_of_megatron),
        cmocka_unit_test(core_names_and_settings_are_those_of_megatron),
        cmocka_unit_test(key_value_rows_of_older_versions_are_reordered),
        cmocka_unit_test(reads_older_legacy_names),
        cmocka_unit_test(core_files_have_the_keys_of_the_state_dict),
        cmocka_unit_test(reads_both_names_of_copies),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
