/*
 * Import and export of Megatron's per-rank checkpoints (mp_rank_XX): round trips at several parallel sizes, row orders
 * of older versions, virtual pipeline stages, refusals.
 */
#define _GNU_SOURCE /* memmem */
#include "ckpt_pt_builder.h"

#define RANK "iter_0000007/mp_rank_00/model_optim_rng.pt"

static int export_ranks(const struct ckpt_fixture *b, const char *dir, int64_t t, int64_t p, int64_t multiple,
                        enum meg_ckpt_names names, struct meg_err *e)
{
    const struct meg_ckpt_save_args s = { .dir = dir, .model = &b->m, .params = &b->p, .weights = { .data = b->w } };
    const struct meg_ckpt_megatron_conf to = { .tensor = t,
                                               .pipeline = p,
                                               .vocab_multiple = multiple,
                                               .iteration = 7,
                                               .consumed_samples = 91,
                                               .seq_length = 5,
                                               .names = names };

    return meg_ckpt_export_megatron(&s, &to, e);
}

static void export_ranks_ok(const struct ckpt_fixture *b, const char *dir, int64_t t, int64_t p, int64_t multiple,
                            enum meg_ckpt_names names)
{
    struct meg_err e;

    meg_remove_tree(dir, NULL);
    if (export_ranks(b, dir, t, p, multiple, names, &e) < 0)
        fail_msg("%s", e.msg);
}

static void every_parallel_size_has_the_same_weights(void **state)
{
    struct ckpt_fixture a, b;

    (void)state;
    make_gated(&a, 4, 1);
    make_gated(&b, 4, 2);
    for (int64_t t = 1; t <= 2; t++)
        for (int64_t p = 1; p <= 4; p *= 2)
            for (int names = MEG_CKPT_NAMES_LEGACY; names <= MEG_CKPT_NAMES_TE; names++)
                for (int64_t multiple = 1; multiple <= 8; multiple *= 8) {
                    int64_t tensor, pipeline;
                    struct meg_ckpt *c;
                    struct meg_err e;

                    export_ranks_ok(&a, "out", t, p, multiple, (enum meg_ckpt_names)names);
                    c = open_ok("out", MEG_UNSET);
                    fill_params(b.w, &b.p, 2);
                    if (meg_ckpt_model_conf(c, &b.m, &e) < 0 || load_f32_weights(c, &b.p, b.w, &e) < 0)
                        fail_msg("%s", e.msg);
                    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
                    assert_same_options(&a.m, &b.m);
                    assert_int_equal(b.m.vocab_size, 11);
                    assert_int_equal(meg_ckpt_iteration(c), MEG_CKPT_RELEASE);
                    assert_int_equal(meg_ckpt_source_iteration(c), 7);
                    assert_int_equal(meg_ckpt_consumed_samples(c), 91);
                    assert_int_equal(meg_ckpt_seq_length(c), 5); /* --seq-length, not the 6 positions */
                    meg_ckpt_parallel_sizes(c, &tensor, &pipeline);
                    assert_int_equal(tensor, t);
                    assert_int_equal(pipeline, p);
                    meg_ckpt_close(c);
                }
    free_fixture(&a);
    free_fixture(&b);
}

/* Replace the first occurrence of from [n] in a file with to [n]. */
static void patch(const char *path, const void *from, const void *to, size_t n)
{
    struct meg_str s = read_bytes(path);
    char *at = memmem(s.s, s.n, from, n);

    assert_non_null(at);
    memcpy(at, to, n);
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

/* A changed element is detected when the tensor is loaded or verified, but not when the checkpoint is opened. */
static void names_a_damaged_tensor(void **state)
{
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture a;

    (void)state;
    make_gated(&a, 4, 1);
    export_ranks_ok(&a, "bad", 1, 1, 1, MEG_CKPT_NAMES_MCORE);
    patch("bad/iter_0000007/mp_rank_00/model_optim_rng.pt", &a.w[a.p.row[0].offset + 3], "1234", 4);
    c = open_ok("bad", MEG_UNSET);
    assert_int_equal(load_f32_weights(c, &a.p, a.w, &e), MEG_EFORMAT);
    assert_contains(e.msg, "mp_rank_00/model_optim_rng.pt|embedding.word_embeddings.weight|CRC-32");
    assert_int_equal(meg_ckpt_verify(c, &e), MEG_EFORMAT);
    meg_ckpt_close(c);
    free_fixture(&a);
}

/*
 * Padding rows are copies of the last row.  If args has no true_vocab_size, they belong to the vocabulary until
 * meg_ckpt_set_vocab_size sets a smaller size.
 */
static void pads_the_vocabulary(void **state)
{
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture a;
    struct meg_params p;
    struct meg_model_conf m;
    const struct meg_param *word;
    float *w;

    (void)state;
    make_gated(&a, 4, 1);
    export_ranks_ok(&a, "pad", 2, 1, 8, MEG_CKPT_NAMES_MCORE);
    for (int t = 0; t < 2; t++)
        patch(t ? "pad/iter_0000007/mp_rank_01/model_optim_rng.pt" : "pad/" RANK, "true_vocab_size", "hush_vocab_size",
              15);
    c = open_ok("pad", MEG_UNSET);
    assert_int_equal(meg_ckpt_vocab_size(c), 16);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    meg_model_params(&p, &m, &meg_mesh_one);
    w = meg_new((size_t)p.flat_numel * sizeof *w);
    assert_int_equal(load_f32_weights(c, &p, w, &e), 0);
    word = meg_params_find(&p, "embedding.word_embeddings.weight");
    for (int row = 11; row < 16; row++)
        assert_memory_equal(w + word->offset + row * 16, w + word->offset + 10 * 16, 64);
    assert_int_equal(meg_ckpt_check_conf(c, &a.m, &e), 0); /* a tokenizer of 11 ids is accepted */
    assert_int_equal(load_f32_weights(c, &a.p, a.w, &e), 0);
    m.vocab_size = 17;
    assert_int_equal(meg_ckpt_check_conf(c, &m, &e), MEG_EUSAGE);
    assert_int_equal(meg_ckpt_set_vocab_size(c, 17, &e), MEG_EUSAGE);
    assert_int_equal(meg_ckpt_set_vocab_size(c, 11, &e), 0);
    assert_int_equal(meg_ckpt_vocab_size(c), 11);
    meg_ckpt_close(c);
    meg_params_free(&p);
    free(w);
    free_fixture(&a);
}

/*
 * Return the row of the native QKV weight that is row r of tensor-parallel rank t in a file with checkpoint_version 0
 * (row0) or 1 (row1); the model has 2 heads of 4 channels, and there are 2 ranks.
 */
static int row0(int t, int r)
{
    return t * 12 + r; /* with one head per rank both orders are q, k, v */
}

static int row1(int t, int r)
{
    return t * 12 + r % 3 * 4 + r / 3; /* q, k and v of channel 0, then of channel 1, ... */
}

static void qkv_rows_of_version_0_and_1_are_reordered(void **state)
{
    static const unsigned char three[] = "checkpoint_versionG\x40\x08\0\0\0\0\0\0",
                               zero[] = "checkpoint_versionG\0\0\0\0\0\0\0\0",
                               one[] = "checkpoint_versionG\x3f\xf0\0\0\0\0\0\0";
    (void)state;
    for (int version = 0; version < 2; version++) {
        int (*const row)(int t, int r) = version ? row1 : row0;
        const struct meg_param *qkv;
        struct meg_ckpt *c;
        struct ckpt_fixture a, b;
        struct meg_err e;

        make_fixture(&a, 1, 8, 1);
        make_fixture(&b, 1, 8, 2);
        export_ranks_ok(&a, "old", 2, 1, 11, MEG_CKPT_NAMES_LEGACY);
        for (int t = 0; t < 2; t++)
            patch(t ? "old/iter_0000007/mp_rank_01/model_optim_rng.pt" : "old/" RANK, three, version ? one : zero,
                  sizeof three - 1);
        c = open_ok("old", MEG_UNSET);
        if (load_f32_weights(c, &b.p, b.w, &e) < 0)
            fail_msg("%s", e.msg);
        qkv = meg_params_find(&b.p, "decoder.layers.0.self_attention.linear_qkv.weight");
        for (int t = 0; t < 2; t++)
            for (int r = 0; r < 12; r++)
                assert_memory_equal(b.w + qkv->offset + row(t, r) * 8, a.w + qkv->offset + (t * 12 + r) * 8, 32);
        meg_ckpt_close(c);
        free_fixture(&a);
        free_fixture(&b);
    }
}

/*
 * Megatron reorders only the rows of tensors named query_key_value, so a missing checkpoint_version does not change the
 * rows of tensors with Megatron Core's names.
 */
static void qkv_rows_with_core_names_are_not_reordered(void **state)
{
    (void)state;
    for (int names = MEG_CKPT_NAMES_MCORE; names <= MEG_CKPT_NAMES_TE; names++)
        for (int gated = 0; gated < 2; gated++) {
            struct meg_ckpt *c;
            struct ckpt_fixture a, b;
            struct meg_err e;

            if (gated) {
                make_gated(&a, 4, 1);
                make_gated(&b, 4, 2);
            } else {
                make_fixture(&a, 1, 8, 1);
                make_fixture(&b, 1, 8, 2);
            }
            export_ranks_ok(&a, "core", 1, 1, 1, (enum meg_ckpt_names)names);
            patch("core/" RANK, "checkpoint_version", "checkpoint_veto___", 18);
            c = open_ok("core", MEG_UNSET);
            if (load_f32_weights(c, &b.p, b.w, &e) < 0)
                fail_msg("%s", e.msg);
            assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
            meg_ckpt_close(c);
            free_fixture(&a);
            free_fixture(&b);
        }
}

/* In version 0, the queries of all heads of a rank precede the keys and values. */
static void version_0_has_queries_first(void **state)
{
    const struct meg_model_conf m = { .attn.a = 4, .attn.g = 4, .attn.d = 2 };
    const struct meg_param row = { .ndim = 1, .dim = { 24 }, .sharding = { meg_equal_parts(24, 1, MEG_AXIS_TP) } };
    const struct ckpt_tp_shard shard = { .model = &m, .tp_rank = 1, .tp_size = 2 };
    static const float want[] = { 0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11 };
    float foreign[12], native[24] = { 0 }, back[12];
    struct ckpt_row_map map[CKPT_MAX_ROW_MAPS];

    (void)state;
    for (int i = 0; i < 12; i++)
        foreign[i] = (float)i;
    for (int i = ckpt_row_maps(map, &shard, &row, CKPT_QKV); i-- > 0;) {
        rows_from_foreign(native, foreign, &map[i]);
        ckpt_to_foreign(back, native, &map[i]);
    }
    assert_memory_equal(native + 12, want, sizeof want);
    assert_memory_equal(back, foreign, sizeof back);
    for (int i = 0; i < 12; i++)
        assert_true(native[i] == 0);
}

/* ---- files built value by value ---- */

static void add_layer(struct pt_builder *f, const struct ckpt_fixture *b, int native, int foreign)
{
    static const char *const name[] = {
        "input_layernorm",
        "self_attention.linear_qkv",
        "self_attention.linear_proj",
        "pre_mlp_layernorm",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
    };

    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        for (int k = 0; k < 2; k++) {
            char from[100], to[100];

            snprintf(from, sizeof from, "decoder.layers.%d.%s.%s", native, name[i], k ? "bias" : "weight");
            snprintf(to, sizeof to, "decoder.layers.%d.%s.%s", foreign, name[i], k ? "bias" : "weight");
            pt_add_param(f, b, from, to);
        }
}

static void pt_begin(struct pt_builder *f, const struct ckpt_fixture *b)
{
    memset(f, 0, sizeof *f);
    meg_pickle_begin(&f->pickle);
    meg_pickle_put_dict_begin(&f->pickle);
    meg_pickle_put_str(&f->pickle, "args");
    meg_pickle_put_namespace_begin(&f->pickle);
    meg_pickle_put_str(&f->pickle, "num_layers");
    meg_pickle_put_int(&f->pickle, b->m.num_layers);
    meg_pickle_put_str(&f->pickle, "hidden_size");
    meg_pickle_put_int(&f->pickle, b->m.hidden_size);
    meg_pickle_put_str(&f->pickle, "num_attention_heads");
    meg_pickle_put_int(&f->pickle, b->m.attn.a);
    meg_pickle_put_str(&f->pickle, "max_position_embeddings");
    meg_pickle_put_int(&f->pickle, b->m.max_position_embeddings);
    meg_pickle_put_str(&f->pickle, "ffn_hidden_size");
    meg_pickle_put_none(&f->pickle);
    meg_pickle_put_namespace_end(&f->pickle);
    meg_pickle_put_str(&f->pickle, "checkpoint_version");
    meg_pickle_put_int(&f->pickle, 3);
}

/* The storage of linear_proj.weight is transposed, and the tensor is a transposed view of it. */
static void a_transposed_view_is_loaded(void **state)
{
    const struct meg_param *row;
    struct meg_ckpt *c;
    struct meg_err e;
    struct pt_builder f;
    struct ckpt_fixture a, b;
    float *w;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    assert_int_equal(meg_mkdirs("turned/mp_rank_00", &e), 0);
    pt_begin(&f, &a);
    meg_pickle_put_str(&f.pickle, "model");
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < a.p.n; i++) {
        const size_t at = f.numbers.n;

        row = &a.p.row[i];
        pt_add_param(&f, &a, row->name, row->name);
        if (strstr(row->name, "linear_proj.weight")) {
            pt_transpose_last(&f, 8);
            w = (float *)(void *)(f.numbers.s + at);
            for (int k = 0; k < 64; k++)
                memcpy(&w[k], &a.w[row->offset + k % 8 * 8 + k / 8], sizeof *w);
        }
    }
    meg_pickle_put_dict_end(&f.pickle);
    pt_end(&f, "turned/mp_rank_00/model_optim_rng.pt");
    c = open_ok("turned", MEG_UNSET);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

static void layers_of_virtual_stages_are_numbered_in_order(void **state)
{
    struct meg_ckpt *c;
    struct meg_err e;
    struct pt_builder f;
    struct ckpt_fixture a, b;

    (void)state;
    make_fixture(&a, 4, 8, 1);
    make_fixture(&b, 4, 8, 2);
    assert_int_equal(meg_mkdirs("parts/mp_rank_00", &e), 0);
    pt_begin(&f, &a);
    meg_pickle_put_str(&f.pickle, "model0");
    meg_pickle_put_dict_begin(&f.pickle);
    pt_add_param(&f, &a, "embedding.word_embeddings.weight", "embedding.word_embeddings.weight");
    pt_add_param(&f, &a, "embedding.position_embeddings.weight", "embedding.position_embeddings.weight");
    add_layer(&f, &a, 0, 0);
    add_layer(&f, &a, 1, 1);
    meg_pickle_put_dict_end(&f.pickle);
    meg_pickle_put_str(&f.pickle, "model1");
    meg_pickle_put_dict_begin(&f.pickle);
    add_layer(&f, &a, 2, 0);
    add_layer(&f, &a, 3, 1);
    pt_add_param(&f, &a, "decoder.final_layernorm.weight", "decoder.final_layernorm.weight");
    pt_add_param(&f, &a, "decoder.final_layernorm.bias", "decoder.final_layernorm.bias");
    meg_pickle_put_str(&f.pickle, "decoder.layers.0.mlp.linear_fc1._extra_state");
    meg_pickle_put_none(&f.pickle);
    meg_pickle_put_dict_end(&f.pickle);
    pt_end(&f, "parts/mp_rank_00/model_optim_rng.pt");
    c = open_ok("parts", MEG_UNSET);
    if (load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

/* ---- refusals ---- */

static void refuses_sizes_that_do_not_divide(void **state)
{
    static const struct {
        int64_t t, p, multiple;
        const char *message;
    } bad[] = {
        { 4, 1, 1, "--target-tensor-parallel-size 4: must divide the number of query groups, 2" },
        { 3, 1, 1, "--target-tensor-parallel-size 3: must divide the number of attention heads, 4" },
        { 1, 3, 1, "--target-pipeline-parallel-size 3: must divide the number of layers, 4" },
        { 0, 1, 1, "--target-tensor-parallel-size 0: must be" },
        { 1, 0, 1, "--target-pipeline-parallel-size 0: must be" },
        { 1, 1, 0, "--make-vocab-size-divisible-by 0: must be" },
    };
    struct meg_err e;
    struct ckpt_fixture a;

    (void)state;
    make_gated(&a, 4, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(export_ranks(&a, "no", bad[i].t, bad[i].p, bad[i].multiple, MEG_CKPT_NAMES_MCORE, &e),
                         MEG_EUSAGE);
        assert_contains(e.msg, bad[i].message);
        assert_int_equal(access("no", F_OK), -1);
    }
    free_fixture(&a);
}

/* Distributed checkpoints are the default format of Megatron; their files differ between releases. */
static void refuses_incomplete_distributed_checkpoints_with_advice(void **state)
{
    static const char *const left[][2] = { { "metadata.json", "common.pt" },
                                           { "metadata.json", "__0_0.distcp" },
                                           { ".metadata", "common.pt" } };

    (void)state;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        struct meg_ckpt *c = NULL;
        struct meg_err e;
        char path[80];

        meg_remove_tree("dist", NULL);
        assert_int_equal(meg_mkdirs("dist/iter_0000010", &e), 0);
        put_file("dist/latest_checkpointed_iteration.txt", "10", 2);
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "dist/iter_0000010/%s", left[i][k]);
            put_file(path, "{}", 2);
        }
        for (int k = 0; k < 2; k++) { /* opened through the tracker, and by the directory itself */
            assert_int_equal(meg_ckpt_open(&c, k ? "dist/iter_0000010" : "dist", MEG_UNSET, &e), MEG_EFORMAT);
            assert_contains(e.msg, i == 2 ? "dist/iter_0000010/.metadata: pickle, opcode 0x7b at byte 0"
                                          : "dist/iter_0000010: found a distributed checkpoint without .metadata|"
                                            "--ckpt-step|copy the checkpoint again");
        }
        assert_true(meg_ckpt_exists("dist/iter_0000010"));
    }
}

static void refuses_damaged_and_unsupported_files(void **state)
{
#define CHANGE(from, to) from, to, sizeof to - 1
    static const struct {
        const char *from, *to;
        size_t n;
        const char *message;
    } bad[] = {
        { CHANGE("hidden_size", "hidden_path"), "--hidden-size is required" },
        { CHANGE("X\x05\0\0\0model", "X\x05\0\0\0mould"), "no dict named model" },
        { CHANGE("argparse\nNamespace", "somebody\nElses    "), NULL }, /* only its attributes are read */
        { CHANGE("X\x04\0\0\0args", "X\x04\0\0\0arms"), "no Namespace named args" },
        { CHANGE("tensor_model_parallel_sizeJ\x01", "tensor_model_parallel_sizeJ\x02"),
          "mp_rank_01/model_optim_rng.pt does not exist|has tensor-parallel size 2 and pipeline-parallel size 1" },
        { CHANGE("tensor_model_parallel_sizeJ\x01", "tensor_model_parallel_sizeJ\0"), "is 0, expected 1 to" },
        { CHANGE("pipeline_model_parallel_sizeJ\x01", "pipeline_model_parallel_sizeJ\x02"),
          "args has pipeline-parallel size 2" },
        { CHANGE("FloatStorage", "FloatStorags"), "the storage type is not supported" },
        { CHANGE("X\1\0\0\0\x30", "X\1\0\0\0\x7a"),
          "tensor embedding.word_embeddings.weight: the ZIP file has no member model_optim_rng/data/z" },
        { CHANGE("true_vocab_sizeJ\x0b", "true_vocab_sizeJ\x0c"),
          "true_vocab_size in args is 12, expected at most 11" },
        { CHANGE("learned_absolute", "learned_absoluti"), "learned_absoluti" },
        { CHANGE("swiglu\x88", "swiglu\x89"), "mlp.linear_fc1.weight has shape [12,16], expected [6,16]" },
        { CHANGE("decoder.final_layernorm.w", "decoder.fatal_layernorm.w"),
          "missing: decoder.final_layernorm.weight|unknown: decoder.fatal" },
        { CHANGE("(J\x0b\0\0\0J", "(J\x0c\0\0\0J"), "exceeds the 176 elements" },
        { CHANGE("\x80\2}(X", "\x80\2}(?"), "member model_optim_rng/data.pkl: pickle, opcode 0x3f at byte 4" },
        { CHANGE("}(X\4\0\0\0args", "}(X\4\0\0\x7f"
                                    "args"),
          "opcode 0x58 at byte 4: the pickle is truncated" },
        { CHANGE("PK\5\6", "PK\5\7"), "no end record of a ZIP file" },
    };
    struct meg_err e;
    struct ckpt_fixture a;

    (void)state;
    make_gated(&a, 4, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct meg_ckpt *c;
        int r;

        export_ranks_ok(&a, "bad", 1, 1, 1, MEG_CKPT_NAMES_MCORE);
        patch("bad/" RANK, bad[i].from, bad[i].to, bad[i].n);
        r = meg_ckpt_open(&c, "bad", MEG_UNSET, &e);
        if (!bad[i].message) {
            assert_int_equal(r, 0);
            meg_ckpt_close(c);
            continue;
        }
        if (r >= 0)
            fail_msg("not refused: %s", bad[i].message);
        assert_contains(e.msg, bad[i].message);
        assert_contains(e.msg, "bad/iter_0000007");
    }
    free_fixture(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_parallel_size_has_the_same_weights),
        cmocka_unit_test(names_a_damaged_tensor),
        cmocka_unit_test(pads_the_vocabulary),
        cmocka_unit_test(qkv_rows_of_version_0_and_1_are_reordered),
        cmocka_unit_test(qkv_rows_with_core_names_are_not_reordered),
        cmocka_unit_test(version_0_has_queries_first),
        cmocka_unit_test(a_transposed_view_is_loaded),
        cmocka_unit_test(layers_of_virtual_stages_are_numbered_in_order),
        cmocka_unit_test(refuses_incomplete_distributed_checkpoints_with_advice),
        cmocka_unit_test(refuses_sizes_that_do_not_divide),
        cmocka_unit_test(refuses_damaged_and_unsupported_files),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
