/*
 * Import and export of BERT: Hugging Face's bert and megatron-bert, and Megatron's per-rank checkpoints.  Round trips,
 * names of older files, stored copies of tied tensors, settings, refusals.
 */
#define _GNU_SOURCE /* memmem */
#include "ckpt_convert.h"
#include "ckpt_pt_builder.h"

static void set_post_norm(struct meg_model_conf *m)
{
    m->residual_from_norm = true;
    m->bias_gelu_fusion = false;
    m->norm_epsilon = 1e-12;
}

static void set_tanh_gelu(struct meg_model_conf *m)
{
    m->openai_gelu = true;
}

static void set_exact_gelu(struct meg_model_conf *m)
{
    m->bias_gelu_fusion = false;
}

/* Create a BERT of 4 layers and 4 heads; tune, unless NULL, modifies its configuration. */
static void make_bert(struct ckpt_fixture *b, int seed, void (*tune)(struct meg_model_conf *m))
{
    begin_model(b);
    b->m.family = MEG_FAMILY_BERT;
    b->m.num_layers = 4;
    b->m.hidden_size = 16;
    b->m.mlp.f = 12;
    b->m.attn.a = 4;
    b->m.max_position_embeddings = 8;
    b->m.vocab_size = 11;
    if (tune)
        tune(&b->m);
    end_model(b, seed);
}

/* ---- Hugging Face ---- */

/* Import a folder that another program wrote and export it again: the weights and settings are unchanged. */
static void folders_of_other_programs_are_reproduced(void **state)
{
    (void)state;
    assert_folder_is_reproduced("bert-tiny");
    assert_folder_is_reproduced("megatron-bert-tiny");
}

static void hf_round_trip_is_bit_identical(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *config; /* strings expected in config.json, separated by | */
    } variant[] = {
        { set_post_norm, "\"BertForPreTraining\"|\"bert\"|\"hidden_act\": \"gelu\"|\"layer_norm_eps\": 1e-12" },
        { set_tanh_gelu, "\"MegatronBertForPreTraining\"|\"megatron-bert\"|\"gelu_new\"|\"layer_norm_eps\": 1e-05" },
        { set_exact_gelu, "\"megatron-bert\"|\"hidden_act\": \"gelu\"|\"type_vocab_size\": 2|\"vocab_size\": 11" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        struct meg_str config;
        struct ckpt_fixture a;

        make_bert(&a, 1, variant[i].tune);
        export_hf_ok(&a, "out");
        config = read_bytes("out/config.json");
        assert_contains(config.s, variant[i].config);
        check_equal(&a, "out");
        meg_str_free(&config);
        free_fixture(&a);
    }
}

static char renamed[200][100];
static int nrenamed;

/* Rename a tensor as in the first BERT checkpoints: norms have gamma and beta, and the prefix "bert." is missing. */
static void make_old(struct meg_st_tensor *t)
{
    char *name = renamed[nrenamed++], *norm;

    snprintf(name, sizeof renamed[0], "%s", t->name + (strncmp(t->name, "bert.", 5) == 0 ? 5 : 0));
    if ((norm = strstr(name, "LayerNorm.weight")))
        strcpy(norm, "LayerNorm.gamma");
    if ((norm = strstr(name, "LayerNorm.bias")))
        strcpy(norm, "LayerNorm.beta");
    t->name = name;
}

/* The first BERT checkpoints have gamma and beta in norms, and store buffers and copies of the tied weight and bias. */
static void reads_older_names_buffers_and_copies(void **state)
{
    static const int64_t position[8] = { 0 };
    struct ckpt_fixture a;
    struct meg_ckpt *c = NULL;
    struct meg_err e;
    struct meg_st_tensor more[] = {
        { .name = "embeddings.position_ids", .dtype = "I64", .ndim = 2, .dim = { 1, 8 }, .data = position },
        { .name = "cls.predictions.decoder.weight", .dtype = "F32", .ndim = 2, .dim = { 11, 16 } },
        { .name = "cls.predictions.decoder.bias", .dtype = "F32", .ndim = 1, .dim = { 11 } },
    };

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    more[1].data = a.w + meg_params_find(&a.p, "embedding.word_embeddings.weight")->offset;
    more[2].data = a.w + meg_params_find(&a.p, "output_layer.bias")->offset;
    nrenamed = 0;
    change_tensors(make_old, more, 3);
    check_equal(&a, "set");
    more[2].data = a.w;
    change_tensors(keep, more, 3);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 mismatched: cls.predictions.decoder.bias differs from output_layer.bias");
    more[1].data = a.w;
    change_tensors(keep, more, 2);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 mismatched: cls.predictions.decoder.weight differs from the word embedding");
    free_fixture(&a);
}

static void drop_pooler_and_binary_head(struct meg_st_tensor *t)
{
    if (strstr(t->name, "pooler") || strstr(t->name, "seq_relationship"))
        t->name = NULL;
}

static void drop_pooler(struct meg_st_tensor *t)
{
    if (strstr(t->name, "pooler"))
        t->name = NULL;
}

static void drop_binary_head(struct meg_st_tensor *t)
{
    if (strstr(t->name, "seq_relationship"))
        t->name = NULL;
}

static void drop_last_norm(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "bert.encoder.layer.3.output.LayerNorm.bias") == 0)
        t->name = NULL;
}

static void cut_query(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "bert.encoder.layer.2.attention.self.query.weight") == 0)
        t->dim[0] = 8;
}

static void rename_embedding_norm(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "bert.embeddings.LayerNorm.weight") == 0)
        t->name = "bert.embeddings.LayerNorm.scale";
}

static void names_wrong_tensors(void **state)
{
    static const struct {
        void (*change)(struct meg_st_tensor *t);
        const char *message;
    } bad[] = {
        { drop_pooler, "2 missing: bert.pooler.dense.weight, bert.pooler.dense.bias|; expected the tensors of "
                       "BertForPreTraining or BertForMaskedLM" },
        { drop_last_norm, "1 missing: bert.encoder.layer.3.output.LayerNorm.bias" },
        { cut_query, "1 mismatched: bert.encoder.layer.2.attention.self.query.weight has shape [8,16], expected "
                     "[16,16]" },
        { rename_embedding_norm,
          "1 missing: bert.embeddings.LayerNorm.weight; 1 unknown: bert.embeddings.LayerNorm.scale" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_change_refused(bad[i].change, bad[i].message);
    free_fixture(&a);
}

#define CONFIG(more)                                                                                                   \
    "{\"model_type\":\"bert\",\"num_hidden_layers\":4,\"hidden_size\":16,\"intermediate_size\":12,"                    \
    "\"num_attention_heads\":4,\"max_position_embeddings\":8,\"vocab_size\":11" more "}"

static void reads_settings_and_their_defaults(void **state)
{
    static const struct {
        const char *config;
        bool is_tanh;
    } good[] = {
        { CONFIG(""), false },
        { CONFIG(",\"hidden_act\":\"gelu\",\"position_embedding_type\":\"absolute\""), false },
        { CONFIG(",\"hidden_act\":\"gelu_new\",\"tie_word_embeddings\":true"), true },
        { CONFIG(",\"hidden_act\":\"gelu_pytorch_tanh\",\"is_decoder\":false"), true },
        { CONFIG(",\"hidden_act\":\"gelu_fast\",\"bos_token_id\":null,\"eos_token_id\":null"), true },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "set");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct meg_model_conf m;
        struct meg_ckpt *c;
        struct meg_err e;

        if (open_with_config(good[i].config, &c, &e) < 0)
            fail_msg("%s: %s", good[i].config, e.msg);
        assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
        assert_true(m.family == MEG_FAMILY_BERT && m.residual_from_norm && m.bert_binary_head && !m.is_untied);
        assert_int_equal(m.openai_gelu, good[i].is_tanh);
        assert_int_equal(m.bias_gelu_fusion, good[i].is_tanh);
        assert_true(m.norm_epsilon == 1e-12 && m.hidden_dropout == 0.1 && m.attn.dropout == 0.1);
        meg_ckpt_close(c);
    }
    free_fixture(&a);
}

static void refuses_unsupported_settings(void **state)
{
    static const struct {
        const char *config, *message;
    } bad[] = {
        { "{\"model_type\":\"bert\",\"num_hidden_layers\":4}", "\"hidden_size\" is missing" },
        { "{\"model_type\":\"bert\",\"num_hidden_layers\":4,\"hidden_size\":16,\"intermediate_size\":12,"
          "\"num_attention_heads\":4,\"max_position_embeddings\":8}",
          "\"vocab_size\" is missing" },
        { CONFIG(",\"hidden_act\":\"relu\""), "unsupported hidden_act relu; expected gelu_new, gelu, " },
        { CONFIG(",\"hidden_act\":7"), "hidden_act" },
        { CONFIG(",\"position_embedding_type\":\"relative_key\""),
          "position_embedding_type is \"relative_key\", but only \"absolute\"" },
        { CONFIG(",\"is_decoder\":true"), "is_decoder is true, but only false" },
        { CONFIG(",\"add_cross_attention\":true"), "add_cross_attention is true" },
        { CONFIG(",\"tie_word_embeddings\":false"), "tie_word_embeddings is false, but only true" },
        { CONFIG(",\"type_vocab_size\":3"),
          "1 mismatched: bert.embeddings.token_type_embeddings.weight has shape [2,16], expected [3,16]" },
        { CONFIG(",\"type_vocab_size\":1"), "--num-tokentypes 1: samples have two segments" },
        { CONFIG(",\"type_vocab_size\":-1"), "--num-tokentypes -1: must be from 0" },
        { CONFIG(",\"type_vocab_size\":0"), "1 unknown: bert.embeddings.token_type_embeddings.weight" },
        { CONFIG(",\"layer_norm_eps\":\"small\""), "layer_norm_eps" },
        { "{\"model_type\":\"roberta\"}", "model_type roberta; expected one of gpt2, llama|bert, megatron-bert" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "set");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_config_refused(bad[i].config, bad[i].message);
    free_fixture(&a);
}

static void drop_token_types_and_binary_head(struct meg_st_tensor *t)
{
    drop_pooler_and_binary_head(t);
    if (t->name && strstr(t->name, "token_type"))
        t->name = NULL;
}

static void drop_contents_of_token_types(struct meg_st_tensor *t)
{
    if (strstr(t->name, "token_type"))
        t->dim[0] = 0;
}

/* transformers writes the files of each class; BertForMaskedLM of older versions has a pooler. */
static void the_tensors_determine_the_heads(void **state)
{
    static const struct {
        const char *config;
        void (*change)(struct meg_st_tensor *t);
        bool has_binary_head;
        int64_t types;
    } model[] = {
        { CONFIG(""), keep, true, 2 },
        { CONFIG(""), drop_pooler_and_binary_head, false, 2 },
        { CONFIG(""), drop_binary_head, false, 2 },
        { CONFIG(",\"type_vocab_size\":0"), drop_contents_of_token_types, true, 0 },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        struct meg_model_conf m;
        struct meg_ckpt *c;
        struct meg_err e;

        change_tensors(model[i].change, NULL, 0);
        if (open_with_config(model[i].config, &c, &e) < 0)
            fail_msg("%zu: %s", i, e.msg);
        assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
        assert_int_equal(m.bert_binary_head, model[i].has_binary_head);
        assert_int_equal(m.num_tokentypes, model[i].types);
        meg_ckpt_close(c);
    }
    free_fixture(&a);
}

static void a_folder_without_token_types_has_no_binary_head(void **state)
{
    static const char config[] = CONFIG(",\"type_vocab_size\":0");
    struct meg_model_conf m;
    struct meg_ckpt *c;
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    change_tensors(drop_token_types_and_binary_head, NULL, 0);
    if (open_with_config(config, &c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    assert_false(m.bert_binary_head);
    meg_ckpt_close(c);
    free_fixture(&a);
}

/* Drop the language-model head, and the prefix that the tensors of BertModel lack. */
static void make_bert_model(struct meg_st_tensor *t)
{
    drop_binary_head(t);
    if (t->name && strncmp(t->name, "cls.", 4) == 0)
        t->name = NULL;
    if (t->name)
        t->name += strlen("bert.");
}

static void drop_language_model_head(struct meg_st_tensor *t)
{
    if (strncmp(t->name, "cls.predictions", 15) == 0)
        t->name = NULL;
}

static void drop_both_heads(struct meg_st_tensor *t)
{
    if (strncmp(t->name, "cls.", 4) == 0)
        t->name = NULL;
}

static void drop_both_heads_and_pooler(struct meg_st_tensor *t)
{
    drop_pooler(t);
    if (t->name)
        drop_both_heads(t);
}

static void drop_bias_of_head(struct meg_st_tensor *t)
{
    if (strcmp(t->name, "cls.predictions.bias") == 0)
        t->name = NULL;
}

static const float two_classes[32];
static const struct meg_st_tensor classifier[] = {
    { .name = "classifier.weight", .dtype = "F32", .ndim = 2, .dim = { 2, 16 }, .data = two_classes },
    { .name = "classifier.bias", .dtype = "F32", .ndim = 1, .dim = { 2 }, .data = two_classes },
};
static const struct meg_st_tensor answers[] = {
    { .name = "qa_outputs.weight", .dtype = "F32", .ndim = 2, .dim = { 2, 16 }, .data = two_classes },
    { .name = "qa_outputs.bias", .dtype = "F32", .ndim = 1, .dim = { 2 }, .data = two_classes },
};

/* Check that c has the weights of a, except the parameters of the language-model head, which keep their values. */
static void check_without_head(const struct ckpt_fixture *a, const struct meg_ckpt *c)
{
    struct ckpt_fixture b = { 0 };
    struct meg_err e;
    float *before;

    assert_int_equal(meg_ckpt_model_conf(c, &b.m, &e), 0);
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 2);
    before = new_params(&b.p, 2);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < b.p.n; i++) {
        const struct meg_param *row = &b.p.row[i];
        const bool is_head = strncmp(row->name, "lm_head.", 8) == 0 || strcmp(row->name, "output_layer.bias") == 0;
        const float *want = is_head ? before + row->offset : a->w + meg_params_find(&a->p, row->name)->offset;

        if (memcmp(b.w + row->offset, want, (size_t)row->numel * 4) != 0)
            fail_msg("%s", row->name);
    }
    free(before);
    free_fixture(&b);
}

/* These are the tensors that the classes of transformers save. */
static void a_missing_language_model_head_is_left_to_training(void **state)
{
    static const struct {
        const char *class;
        void (*change)(struct meg_st_tensor *t);
        const struct meg_st_tensor *more;
        bool has_binary_head;
    } model[] = {
        { "BertModel", make_bert_model, NULL, false },
        { "BertForNextSentencePrediction", drop_language_model_head, NULL, true },
        { "BertForSequenceClassification", drop_both_heads, classifier, false },
        { "BertForTokenClassification", drop_both_heads_and_pooler, classifier, false },
        { "BertForQuestionAnswering", drop_both_heads_and_pooler, answers, false },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        struct meg_ckpt_reader *reader = NULL;
        struct meg_model_conf m;
        struct meg_params p;
        struct meg_ckpt *c;
        struct meg_err e;

        change_tensors(model[i].change, model[i].more, model[i].more ? 2 : 0);
        c = open_ok("set", MEG_UNSET);
        assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
        if (m.bert_binary_head != model[i].has_binary_head || !meg_ckpt_lacks_head(c))
            fail_msg("%s", model[i].class);
        check_without_head(&a, c);
        meg_model_params(&p, &m, &meg_mesh_one);
        assert_int_equal(meg_ckpt_reader_open(&reader, c, &p, &e), MEG_EFORMAT);
        assert_contains(e.msg, "found no language-model head; expected the tensors of BertForPreTraining or "
                               "BertForMaskedLM|meg-train --finetune");
        meg_params_free(&p);
        meg_ckpt_close(c);
    }
    free_fixture(&a);
}

/* Files with a part of the head are damaged, and a classifier has no language-model head. */
static void refuses_a_part_of_the_head_and_other_heads_beside_it(void **state)
{
    struct meg_ckpt *c = NULL;
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_hf_ok(&a, "out");
    assert_change_refused(drop_bias_of_head, "1 missing: cls.predictions.bias");
    change_tensors(keep, classifier, 2);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "2 unknown: classifier.bias, classifier.weight");
    free_fixture(&a);
}

static void set_rotary(struct meg_model_conf *m)
{
    m->position_embedding_type = MEG_POSITION_ROPE;
}

static void set_rms_norm(struct meg_model_conf *m)
{
    m->normalization = MEG_NORM_RMS;
}

static void set_swiglu(struct meg_model_conf *m)
{
    m->swiglu = true;
}

static void set_no_bias(struct meg_model_conf *m)
{
    m->has_bias = false;
}

static void set_untied(struct meg_model_conf *m)
{
    m->is_untied = true;
}

static void set_groups(struct meg_model_conf *m)
{
    m->group_query_attention = true;
    m->attn.g = 2;
}

static void set_wide_heads(struct meg_model_conf *m)
{
    m->attn.d = 8;
}

static void set_no_binary_head(struct meg_model_conf *m)
{
    m->bert_binary_head = false;
}

static void set_rotary_post_norm(struct meg_model_conf *m)
{
    m->residual_from_norm = true;
    m->position_embedding_type = MEG_POSITION_ROPE;
}

static void refuses_to_export_what_hf_cannot_express(void **state)
{
    static const struct {
        void (*tune)(struct meg_model_conf *m);
        const char *message;
    } bad[] = {
        { set_rotary, "Hugging Face's megatron-bert format|--position-embedding-type rope would" },
        { set_rotary_post_norm, "Hugging Face's bert format|--position-embedding-type rope would" },
        { set_rms_norm, "--normalization RMSNorm would be read as LayerNorm; use" },
        { set_swiglu, "--swiglu yes would be read as no; use" },
        { set_no_bias, "--disable-bias-linear yes would be read as no; use" },
        { set_untied, "--untie-embeddings-and-output-weights yes would be read as no; use" },
        { set_groups, "--group-query-attention yes would be read as no|--num-query-groups 2 would be read as 4; use" },
        { set_wide_heads, "--kv-channels 8 would be read as 4; use" },
        { set_no_binary_head, "--num-tokentypes 0 would be read as 2; use" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_fixture b;

        make_bert(&b, 1, bad[i].tune);
        assert_export_refused(&b, bad[i].message);
        free_fixture(&b);
    }
}

/*
 * The padding id is the zero-based number of the last line with [PAD], as in transformers.  The tokenizer type follows
 * from do_lower_case, strip_accents and tokenize_chinese_chars, unless there is a tokenizer.json, which transformers
 * prefers, too.
 */
static void the_tokenizer_follows_from_vocab_txt(void **state)
{
    static const struct {
        const char *config, *type;
    } variant[] = {
        { "{}", "BertWordPieceLowerCase" },
        { "{\"do_lower_case\":true,\"strip_accents\":null}", "BertWordPieceLowerCase" },
        { "{\"do_lower_case\":false,\"tokenize_chinese_chars\":true}", "BertWordPieceCase" },
        { "{\"do_lower_case\":true,\"strip_accents\":false}", NULL },
        { "{\"tokenize_chinese_chars\":false}", NULL },
    };
    char text[] = "[PAD]\n[UNK]\nx\n[PAD]\r\n[CLS]";
    const struct meg_ckpt_tokenizer files = {
        .file = { [MEG_TOK_FILE_BERT_VOCAB] = { .s = text, .n = sizeof text - 1 } }, .eod = 3, .bos = -1
    };
    struct meg_ckpt_save_args s = { .dir = "tok", .tok = &files };
    struct ckpt_fixture a;
    struct meg_str config;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    s.model = &a.m;
    s.params = &a.p;
    s.weights.data = a.w;
    assert_int_equal(
        meg_ckpt_export_hf(&s, &(const struct meg_ckpt_hf_conf){ .lock = &(struct meg_dir_lock){ .was_empty = true } },
                           &e),
        0);
    config = read_bytes("tok/config.json");
    assert_contains(config.s, "\"pad_token_id\": 3");
    assert_null(strstr(config.s, "eos_token_id"));
    assert_int_equal(access("tok/generation_config.json", F_OK), -1);
    for (size_t i = 0; i < 2 * (sizeof variant / sizeof *variant); i++) {
        const bool has_json = i & 1;
        struct meg_tok_conf tok = { .vocab_size = MEG_UNSET };
        const char *type = has_json ? "PretrainedFromHF" : variant[i / 2].type;
        struct meg_ckpt *c;

        put_file("tok/tokenizer_config.json", variant[i / 2].config, strlen(variant[i / 2].config));
        if (has_json)
            put_file("tok/tokenizer.json", "{}", 2);
        else
            (void)unlink("tok/tokenizer.json");
        c = open_ok("tok", MEG_UNSET);
        meg_ckpt_tok_conf(c, &tok);
        if (type)
            assert_string_equal(tok.type, type);
        else
            assert_null(tok.type);
        assert_contains(tok.vocab_file, "tok/vocab.txt");
        meg_ckpt_close(c);
    }
    meg_str_free(&config);
    free_fixture(&a);
}

/* ---- Megatron ---- */

/* The vocabulary of 11 tokens is padded to 16 rows, so that each of two tensor-parallel ranks has 8. */
static void every_parallel_size_has_the_same_weights(void **state)
{
    static void (*const tune[])(struct meg_model_conf *) = { NULL,       set_post_norm, set_no_binary_head,
                                                             set_untied, set_tanh_gelu, set_swiglu,
                                                             set_rotary };

    (void)state;
    for (size_t i = 0; i < sizeof tune / sizeof *tune; i++)
        for (int names = MEG_CKPT_NAMES_LEGACY; names <= MEG_CKPT_NAMES_TE; names++)
            for (int64_t t = 1; t <= 2; t++)
                for (int64_t p = 1; p <= 2; p++) {
                    struct ckpt_fixture a;

                    make_bert(&a, 1, tune[i]);
                    if (!a.m.residual_from_norm || names == MEG_CKPT_NAMES_LEGACY) {
                        export_ranks_ok(&a, t, p, (enum meg_ckpt_names)names);
                        check_equal(&a, "out");
                    }
                    free_fixture(&a);
                }
}

#define FIRST "out/iter_0000007/mp_rank_00_000/model_optim_rng.pt"
#define LAST "out/iter_0000007/mp_rank_01_001/model_optim_rng.pt"

/*
 * Tensor-parallel rank 1 has 3 rows of the vocabulary.  The word embedding is padded with copies of the last row, the
 * output bias with 0.
 */
static void pads_the_embedding_and_the_bias(void **state)
{
    const float *word, *bias;
    struct ckpt_fixture a;
    struct meg_ckpt *c;
    const int64_t *dim;

    (void)state;
    make_bert(&a, 1, NULL);
    export_ranks_ok(&a, 2, 2, MEG_CKPT_NAMES_LEGACY);
    c = open_ok("out", MEG_UNSET);
    assert_int_equal(meg_ckpt_vocab_size(c), 11);
    bias = tensor_of(c, 1, "output_layer.bias", &dim);
    assert_int_equal(dim[0], 8);
    for (int i = 0; i < 8; i++)
        assert_true(bias[i] == (i < 3 ? a.w[meg_params_find(&a.p, "output_layer.bias")->offset + 8 + i] : 0));
    word = tensor_of(c, 1, "embedding.word_embeddings.weight", &dim);
    for (int i = 3; i < 8; i++)
        assert_memory_equal(word + i * 16,
                            a.w + meg_params_find(&a.p, "embedding.word_embeddings.weight")->offset + 160, 64);
    meg_ckpt_close(c);
    free_fixture(&a);
}

/*
 * Check how many times the file of the last rank contains each key.  The dicts encoder, pooler and lm_head are flat:
 * they have keys such as "dense.weight" instead of a nested dict "dense".
 */
static void legacy_names_are_those_of_megatron(void **state)
{
    static const struct {
        const char *key;
        int count;
    } last[] = { { "language_model", 1 },
                 { "encoder", 1 },
                 { "layers.1.input_norm.bias", 1 },
                 { "layers.2.input_norm.bias", 0 },
                 { "final_norm.weight", 1 },
                 { "pooler", 1 },
                 { "lm_head", 1 },
                 { "dense.weight", 2 }, /* in pooler and lm_head */
                 { "dense", 0 },
                 { "norm.bias", 1 },
                 { "bias", 2 }, /* in lm_head and binary_head */
                 { "binary_head", 1 },
                 { "word_embeddings_for_head", 1 },
                 { "embedding", 0 } };
    struct ckpt_fixture a;
    struct meg_str s;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    export_ranks_ok(&a, 2, 2, MEG_CKPT_NAMES_LEGACY);
    s = read_bytes(LAST);
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (count_key(&s, last[i].key) != last[i].count)
            fail_msg("%s: found %d times, expected %d", last[i].key, count_key(&s, last[i].key), last[i].count);
    meg_str_free(&s);
    free_fixture(&a);
}

/* Load a file with names of older releases, which is built value by value. */
static void reads_older_legacy_names(void **state)
{
    static const char *const older[][2] = { { "lm_head.layer_norm.", "lm_head.layernorm." },
                                            { "output_layer.bias", "lm_head.bias" },
                                            { "pooler.", "language_model.pooler." },
                                            { "embedding.", "language_model.embedding." },
                                            { "encoder.", "language_model.transformer." } };
    struct pt_builder f = { 0 };
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, NULL);
    free(a.w);
    meg_params_free(&a.p);
    a.m.num_layers = 1;
    meg_model_params(&a.p, &a.m, &meg_mesh_one);
    a.w = new_params(&a.p, 1);
    assert_int_equal(meg_mkdirs("older/mp_rank_00", &e), 0);
    meg_pickle_begin(&f.pickle);
    meg_pickle_put_dict_begin(&f.pickle);
    meg_pickle_put_str(&f.pickle, "args");
    meg_pickle_put_namespace_begin(&f.pickle);
    meg_pickle_put_str(&f.pickle, "num_layers");
    meg_pickle_put_int(&f.pickle, 1);
    meg_pickle_put_str(&f.pickle, "hidden_size");
    meg_pickle_put_int(&f.pickle, 16);
    meg_pickle_put_str(&f.pickle, "ffn_hidden_size");
    meg_pickle_put_int(&f.pickle, 12);
    meg_pickle_put_str(&f.pickle, "num_attention_heads");
    meg_pickle_put_int(&f.pickle, 4);
    meg_pickle_put_str(&f.pickle, "max_position_embeddings");
    meg_pickle_put_int(&f.pickle, 8);
    meg_pickle_put_namespace_end(&f.pickle);
    meg_pickle_put_str(&f.pickle, "checkpoint_version");
    meg_pickle_put_int(&f.pickle, 3);
    meg_pickle_put_str(&f.pickle, "model");
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < a.p.n; i++) {
        const char *name = a.p.row[i].name;
        char foreign[CKPT_NAME_CHARS];

        snprintf(foreign, sizeof foreign, "%s", name);
        for (size_t k = 0; k < sizeof older / sizeof *older; k++)
            if (strncmp(name, older[k][0], strlen(older[k][0])) == 0)
                snprintf(foreign, sizeof foreign, "%s%s", older[k][1], name + strlen(older[k][0]));
        pt_add_param(&f, &a, name, foreign);
    }
    meg_pickle_put_dict_end(&f.pickle);
    pt_end(&f, "older/mp_rank_00/model_optim_rng.pt");
    check_equal(&a, "older");
    free_fixture(&a);
}

/*
 * In version 0, a rank's queries of all heads precede its keys and values.  With 2 heads per rank, this order differs
 * from the native one.
 */
static void qkv_rows_of_version_0_are_reordered(void **state)
{
    static const char three[] = "checkpoint_versionG\x40\x08\0\0\0\0\0\0",
                      zero[] = "checkpoint_versionG\0\0\0\0\0\0\0\0";
    static const int row[] = { 0, 3, 1, 4, 2, 5 }; /* native positions of the blocks q0 q1 k0 k1 v0 v1 of the file */
    const struct meg_param *qkv;
    struct ckpt_fixture a, b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, NULL);
    make_bert(&b, 2, NULL);
    export_ranks_ok(&a, 2, 1, MEG_CKPT_NAMES_LEGACY);
    for (int t = 0; t < 2; t++)
        patch(t ? "out/iter_0000007/mp_rank_01/model_optim_rng.pt" : "out/iter_0000007/mp_rank_00/model_optim_rng.pt",
              three, zero, sizeof three - 1);
    c = open_ok("out", MEG_UNSET);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    qkv = meg_params_find(&b.p, "encoder.layers.3.self_attention.linear_qkv.weight");
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 6; k++) /* native: q0 k0 v0 q1 k1 v1 */
            assert_memory_equal(b.w + qkv->offset + (t * 6 + row[k]) * 64, a.w + qkv->offset + (t * 6 + k) * 64, 256);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

static void names_wrong_megatron_files(void **state)
{
#define CHANGE(from, to) from, to, sizeof to - 1
    static const struct {
        const char *path, *from, *to;
        size_t n;
        const char *message;
    } bad[] = {
        { LAST, CHANGE("binary_head.w", "binary_hare.w"),
          "match the model: 1 unknown: binary_hare.weight" }, /* not missing: rank 0 has the tensor, too */
        { "out/iter_0000007/mp_rank_00_001/model_optim_rng.pt", CHANGE("binary_head.w", "binary_hare.w"),
          "1 missing: binary_head.weight|unknown: binary_hare.weight" },
        { "out/iter_0000007/mp_rank_00_001/model_optim_rng.pt", CHANGE("lm_head.dense.b", "lm_hare.dense.b"),
          "1 missing: lm_head.dense.bias" },
        { FIRST, CHANGE("X\x0b\0\0\0hidden_size", "X\x0b\0\0\0hidden_path"), "--hidden-size is required" },
        { FIRST, CHANGE("bert_binary_head\x88", "bert_binary_head\x89"),
          "5 unknown: embedding.tokentype_embeddings.weight" },
        { FIRST, CHANGE("post_layernorm\x89", "post_layernorm\x88"),
          "apply_residual_connection_post_layernorm is set in args, but Megatron core" },
    };
    struct ckpt_fixture a;

    (void)state;
    make_bert(&a, 1, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_ckpt *c = NULL;
        struct meg_err e;

        export_ranks_ok(&a, 2, 2, MEG_CKPT_NAMES_MCORE);
        patch(bad[i].path, bad[i].from, bad[i].to, bad[i].n);
        assert_int_equal(meg_ckpt_open(&c, "out", MEG_UNSET, &e), MEG_EFORMAT);
        assert_contains(e.msg, bad[i].message);
    }
    free_fixture(&a);
}

/* Megatron core ignores --apply-residual-connection-post-layernorm. */
static void refuses_to_export_post_norm_to_core_names(void **state)
{
    struct ckpt_fixture a;
    struct meg_err e;

    (void)state;
    make_bert(&a, 1, set_post_norm);
    for (int names = MEG_CKPT_NAMES_MCORE; names <= MEG_CKPT_NAMES_TE; names++) {
        assert_int_equal(export_ranks(&a, "not", 1, 1, (enum meg_ckpt_names)names, &e), MEG_EUSAGE);
        assert_contains(e.msg,
                        "Megatron core: --apply-residual-connection-post-layernorm yes would be read as no; use");
        assert_int_equal(access("not", F_OK), -1);
    }
    free_fixture(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_of_other_programs_are_reproduced),
        cmocka_unit_test(hf_round_trip_is_bit_identical),
        cmocka_unit_test(reads_older_names_buffers_and_copies),
        cmocka_unit_test(names_wrong_tensors),
        cmocka_unit_test(reads_settings_and_their_defaults),
        cmocka_unit_test(refuses_unsupported_settings),
        cmocka_unit_test(the_tensors_determine_the_heads),
        cmocka_unit_test(a_folder_without_token_types_has_no_binary_head),
        cmocka_unit_test(a_missing_language_model_head_is_left_to_training),
        cmocka_unit_test(refuses_a_part_of_the_head_and_other_heads_beside_it),
        cmocka_unit_test(refuses_to_export_what_hf_cannot_express),
        cmocka_unit_test(the_tokenizer_follows_from_vocab_txt),
        cmocka_unit_test(every_parallel_size_has_the_same_weights),
        cmocka_unit_test(pads_the_embedding_and_the_bias),
        cmocka_unit_test(legacy_names_are_those_of_megatron),
        cmocka_unit_test(reads_older_legacy_names),
        cmocka_unit_test(qkv_rows_of_version_0_are_reordered),
        cmocka_unit_test(names_wrong_megatron_files),
        cmocka_unit_test(refuses_to_export_post_norm_to_core_names),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
