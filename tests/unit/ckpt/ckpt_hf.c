/* Import and export of Hugging Face GPT-2 checkpoints: tensor layouts, conversion to f32, settings, refusals. */
#include "ckpt_fixture.h"

#define CONFIG(more)                                                                                                   \
    "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":8,\"n_head\":2,\"n_positions\":6,\"vocab_"                      \
    "size\":11" more "}"

static void put_gpt2_config(const char *dir, const char *text)
{
    char path[100];
    struct meg_err e;

    assert_int_equal(meg_mkdirs(dir, &e), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_file(path, text, strlen(text));
}

/* Export b to a Hugging Face directory; unless config is NULL, it replaces config.json. */
static void export_gpt2(struct ckpt_fixture *b, const char *dir, const char *config)
{
    export_hf_ok(b, dir);
    if (config)
        put_gpt2_config(dir, config);
}

/* Apply all row maps of a tensor, from foreign to native, or back if is_back. */
static void gpt2_row_maps_to_native(float *native, float *foreign, const struct ckpt_tp_shard *shard,
                                    const struct meg_param *row, enum ckpt_remap remap, bool is_back)
{
    struct ckpt_row_map map[CKPT_MAX_ROW_MAPS];

    for (int i = ckpt_row_maps(map, shard, row, remap); i-- > 0;)
        if (is_back)
            ckpt_to_foreign(foreign, native, &map[i]);
        else
            rows_from_foreign(native, foreign, &map[i]);
}

static void qkv_rows_are_interleaved_by_head(void **state)
{
    /*
     * The layer has 2 heads of 2 channels, and 3 inputs.  In the foreign tensor [in, out], columns are
     * q0 q0 q1 q1 k0 .. v1, and element (r, c) is 100 r + c.
     */
    float foreign[3 * 12], native[12 * 3], back[3 * 12];
    static const int want[12] = { 0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11 };
    const struct meg_model_conf m = { .attn.a = 2, .attn.g = 2, .attn.d = 2 };
    const struct ckpt_tp_shard shard = { .model = &m, .tp_size = 1 };
    const struct meg_param weight = { .ndim = 2,
                                      .dim = { 12, 3 },
                                      .sharding = { meg_equal_parts(12, 1, MEG_AXIS_NONE) } };
    const struct meg_param bias = { .ndim = 1, .dim = { 12 }, .sharding = { meg_equal_parts(12, 1, MEG_AXIS_NONE) } };

    (void)state;
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 12; c++)
            foreign[12 * r + c] = (float)(100 * r + c);
    gpt2_row_maps_to_native(native, foreign, &shard, &weight, CKPT_QKV_TRANSPOSED, false);
    for (int r = 0; r < 12; r++)
        for (int c = 0; c < 3; c++)
            assert_true(native[3 * r + c] == (float)(100 * c + want[r]));
    gpt2_row_maps_to_native(native, back, &shard, &weight, CKPT_QKV_TRANSPOSED, true);
    assert_memory_equal(back, foreign, sizeof foreign);
    gpt2_row_maps_to_native(native, foreign, &shard, &bias, CKPT_QKV, false);
    for (int r = 0; r < 12; r++)
        assert_true(native[r] == (float)want[r]);
}

/* Check that native row r of a vector is row want[r] of the foreign one. */
static void assert_rows(const struct meg_model_conf *m, enum ckpt_remap remap, const int *want, int n)
{
    const struct ckpt_tp_shard shard = { .model = m, .tp_size = 1 };
    const struct meg_param row = { .ndim = 1, .dim = { n }, .sharding = { meg_equal_parts(n, 1, MEG_AXIS_NONE) } };
    float foreign[24], native[24], back[24];

    for (int r = 0; r < n; r++)
        foreign[r] = (float)r;
    gpt2_row_maps_to_native(native, foreign, &shard, &row, remap, false);
    for (int r = 0; r < n; r++)
        assert_true(native[r] == (float)want[r]);
    gpt2_row_maps_to_native(native, back, &shard, &row, remap, true);
    assert_memory_equal(back, foreign, (size_t)n * sizeof *back);
}

/* Heads of one channel.  Foreign rows: q0 q1 q2 q3 k0 k1 v0 v1; and q0 q1 v0 v1 k0 k1 of each block of two heads. */
static void qkv_rows_have_groups_or_blocks(void **state)
{
    static const int grouped[] = { 0, 1, 4, 6, 2, 3, 5, 7 }, blocks[] = {
        0, 4, 2, 1, 5, 3, 6, 10, 8, 7, 11, 9, 12, 16, 14, 13, 17, 15, 18, 22, 20, 19, 23, 21
    };

    (void)state;
    assert_rows(&(const struct meg_model_conf){ .attn = { .a = 4, .g = 2, .d = 1 } }, CKPT_QKV, grouped, 8);
    assert_rows(&(const struct meg_model_conf){ .attn = { .a = 8, .g = 8, .d = 1 } }, CKPT_QVK_BLOCKS, blocks, 24);
}

/* The tensor has more columns than CKPT_ROWS_MAX, and their number is not a multiple of it. */
static void linear_weights_are_transposed(void **state)
{
    static float foreign[37 * 5], native[5 * 37], back[37 * 5];
    const struct meg_model_conf m = { 0 };
    const struct ckpt_tp_shard shard = { .model = &m, .tp_size = 1 };
    const struct meg_param row = { .ndim = 2, .dim = { 5, 37 }, .sharding = { meg_equal_parts(5, 1, MEG_AXIS_NONE) } };

    (void)state;
    for (int i = 0; i < 37 * 5; i++)
        foreign[i] = (float)i;
    gpt2_row_maps_to_native(native, foreign, &shard, &row, CKPT_TRANSPOSED, false);
    for (int r = 0; r < 5; r++)
        for (int c = 0; c < 37; c++)
            assert_true(native[37 * r + c] == (float)(5 * c + r));
    gpt2_row_maps_to_native(native, back, &shard, &row, CKPT_TRANSPOSED, true);
    assert_memory_equal(back, foreign, sizeof foreign);
}

static void bf16_and_f16_convert_to_f32_exactly(void **state)
{
    /* IEEE 754: 1, -2, 65504, smallest normal, 1 and 3 times the smallest subnormal, largest subnormal, -0, inf, NaN */
    static const uint16_t f16[] = { 0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x0003, 0x03ff, 0x8000, 0x7c00, 0x7e01 };
    static const float want[] = {
        1, -2, 65504, 0x1p-14f, 0x1p-24f, 3 * 0x1p-24f, 1023 * 0x1p-24f, -0.0f, __builtin_inff()
    };
    static const uint16_t bf16[] = { 0x3f80, 0xc049, 0x7f80 };
    float out[10];

    (void)state;
    ckpt_to_f32(out, f16, "F16", 10);
    assert_memory_equal(out, want, sizeof want);
    assert_true(out[9] != out[9]);
    ckpt_to_f32(out, bf16, "BF16", 3);
    assert_true(out[0] == 1 && out[1] == -3.140625f && out[2] == __builtin_inff());
}

static void gpt2_round_trip_is_bit_identical(void **state)
{
    struct ckpt_fixture a, b;
    struct meg_ckpt *c;
    struct meg_model_conf m;
    struct meg_err e;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    a.m.bias_gelu_fusion = false;
    export_gpt2(&a, "out", NULL);
    if (meg_ckpt_open(&c, "out", MEG_UNSET, &e) < 0 || meg_ckpt_model_conf(c, &m, &e) < 0 ||
        load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    assert_false(meg_ckpt_is_native(c));
    assert_null(meg_ckpt_run_state(c));
    assert_int_equal(meg_ckpt_iteration(c), MEG_CKPT_RELEASE);
    assert_false(m.bias_gelu_fusion);
    assert_int_equal(m.attn.d, 4);
    assert_int_equal(m.vocab_size, 11);
    meg_ckpt_close(c);
    assert_int_equal(meg_ckpt_open(&c, "out", 3, &e), MEG_EUSAGE);
    assert_contains(e.msg, "--ckpt-step 3|out");
    free_fixture(&a);
    free_fixture(&b);
}

/*
 * Older files also contain attention masks and a copy of the tied head, and their names lack the prefix
 * "transformer.".  The test writes such a checkpoint as two files in bf16.
 */
static void reads_older_names_shards_and_missing_prefixes(void **state)
{
    static const char mask[4] = { 0 };
    struct meg_st_tensor t[2][40];
    struct meg_str index = { 0 };
    struct meg_ckpt *c;
    struct meg_st *st;
    struct ckpt_fixture a, b;
    struct meg_err e;
    uint16_t *half[40];
    int n[2] = { 0 }, nhalf = 0;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    for (int i = 0; i < a.p.n; i++) /* values that bf16 represents exactly */
        for (int64_t k = 0; k < a.p.row[i].numel; k++)
            a.w[a.p.row[i].offset + k] = (float)((k * 7 + i) % 128);
    export_gpt2(&a, "old", CONFIG(",\"tie_word_embeddings\":true"));
    assert_int_equal(meg_st_open(&st, "old/model.safetensors", &e), 0);
    meg_str_printf(&index, "{\"weight_map\":{");
    for (int i = 0; i < st->n; i++) {
        struct meg_st_tensor x = st->t[i];
        const int is_wte = strcmp(x.name, "transformer.wte.weight") == 0;
        const float *v = x.data;

        half[nhalf] = meg_new((size_t)x.nbytes / 2);
        for (int64_t k = 0; k < x.nbytes / 4; k++) {
            uint32_t u;
            memcpy(&u, &v[k], 4);
            half[nhalf][k] = (uint16_t)(u >> 16);
        }
        x.data = half[nhalf++];
        x.dtype = "BF16";
        x.name += strlen("transformer.");
        meg_str_printf(&index, "\"%s\":\"part-%d.safetensors\",", x.name, i % 2);
        t[i % 2][n[i % 2]++] = x;
        if (is_wte) {
            x.name = "lm_head.weight";
            t[0][n[0]++] = x;
        }
    }
    t[0][n[0]++] =
        (struct meg_st_tensor){ .name = "h.0.attn.bias", .dtype = "U8", .ndim = 2, .dim = { 2, 2 }, .data = mask };
    t[1][n[1]++] = (struct meg_st_tensor){ .name = "h.0.attn.masked_bias", .dtype = "F32", .data = mask };
    meg_str_printf(&index, "\"lm_head.weight\":\"part-0.safetensors\"}}");
    put_tensors("old/part-0.safetensors", t[0], n[0], true);
    put_tensors("old/part-1.safetensors", t[1], n[1], true);
    put_file("old/model.safetensors.index.json", index.s, index.n);
    assert_int_equal(unlink("old/model.safetensors"), 0);

    if (meg_ckpt_open(&c, "old", MEG_UNSET, &e) < 0 || load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < a.p.n; i++)
        assert_memory_equal(a.w + a.p.row[i].offset, b.w + a.p.row[i].offset, (size_t)a.p.row[i].numel * 4);
    meg_ckpt_close(c);

    /* a head that differs from the embedding to which it is tied */
    for (int i = 0; i < n[0]; i++)
        if (strcmp(t[0][i].name, "lm_head.weight") == 0) {
            uint16_t *other = meg_new((size_t)t[0][i].nbytes);

            other[3] = 1;
            t[0][i].data = half[nhalf++] = other;
        }
    put_tensors("old/part-0.safetensors", t[0], n[0], true);
    assert_int_equal(meg_ckpt_open(&c, "old", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 mismatched: lm_head.weight differs from the word embedding");
    /* a tensor in two files */
    put_tensors("old/part-1.safetensors", t[0], n[0], true);
    assert_int_equal(meg_ckpt_open(&c, "old", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "part-|is also in");
    while (nhalf)
        free(half[--nhalf]);
    meg_str_free(&index);
    meg_st_close(st);
    free_fixture(&a);
    free_fixture(&b);
}

static void refuses_unsupported_gpt2_settings(void **state)
{
    static const struct {
        const char *config, *message;
    } bad[] = {
        { "{\"model_type\":\"gpt_new\"}", "model_type gpt_new|expected one of gpt2, llama" },
        { "{\"n_layer\":1}", "\"model_type\" is missing" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":1}", "\"n_embd\" is missing" },
        { CONFIG(",\"activation_function\":\"relu\""), "activation_function relu" },
        { CONFIG(",\"scale_attn_by_inverse_layer_idx\":true"), "scale_attn_by_inverse_layer_idx is true" },
        { CONFIG(",\"scale_attn_weights\":false"), "scale_attn_weights is false" },
        { CONFIG(",\"n_inner\":\"4\""), "n_inner" },
        { CONFIG(",\"n_inner\":16"), "mismatched: transformer.h.0.mlp.c_fc.weight has shape [8,32], expected "
                                     "[8,16]|c_fc.bias|c_proj.weight" },
        { CONFIG(",\"tie_word_embeddings\":false"), "1 missing: lm_head.weight" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":2000000000,\"n_embd\":8,\"n_head\":2,\"n_"
          "positions\":6,\"vocab_size\":11}",
          "num-layers|2000000000" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":8,\"n_head\":2,\"n_positions\":6,"
          "\"vocab_size\":4000000000}",
          "vocabulary size|4000000000" },
        { "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":9,\"n_head\":2,\"n_positions\":6,"
          "\"vocab_size\":11}",
          "--hidden-size 9: must be a multiple" },
        { "{", "invalid JSON" },
    };
    static const char outside[] = "{\"weight_map\":{\"a\":\"../x\"}}";
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture b;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    export_gpt2(&b, "set", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_config_refused(bad[i].config, bad[i].message);
    put_gpt2_config("set", CONFIG(""));
    assert_int_equal(unlink("set/model.safetensors"), 0);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_ENOENT);
    assert_contains(e.msg, "model.safetensors|pytorch_model.bin");
    put_file("set/pytorch_model.bin", "", 0);
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "set/pytorch_model.bin: found no end record of a ZIP file in 0 bytes");
    put_file("set/model.safetensors.index.json", outside, strlen(outside));
    assert_int_equal(meg_ckpt_open(&c, "set", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "../x");
    free_fixture(&b);
}

static void every_tanh_gelu_is_exported_as_gelu_new(void **state)
{
    static const struct {
        bool is_fused, is_openai;
        const char *config;
    } c[] = {
        { true, false, "\"activation_function\": \"gelu_new\"" },
        { false, true, "\"activation_function\": \"gelu_new\"" },
        { false, false, "\"activation_function\": \"gelu\"" },
    };
    struct ckpt_fixture b;

    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct meg_str config;

        make_fixture(&b, 1, 8, 1);
        b.m.bias_gelu_fusion = c[i].is_fused;
        b.m.openai_gelu = c[i].is_openai;
        export_hf_ok(&b, "gelu");
        config = read_bytes("gelu/config.json");
        assert_contains(config.s, c[i].config);
        meg_str_free(&config);
        free_fixture(&b);
    }
}

static void refuses_to_export_what_gpt2_cannot_express(void **state)
{
    struct meg_ckpt_save_args s = { .dir = "wide" };
    struct meg_model_conf m;
    struct meg_err e;

    (void)state;
    m = small_gpt_conf(1, 8);
    m.attn.d = 16;
    s.model = &m;
    assert_int_equal(
        meg_ckpt_export_hf(&s, &(const struct meg_ckpt_hf_conf){ .lock = &(struct meg_dir_lock){ .was_empty = true } },
                           &e),
        MEG_EUSAGE);
    assert_contains(e.msg, "gpt2|--kv-channels 16 would be read as 4; use");
    assert_int_equal(access("wide", F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qkv_rows_are_interleaved_by_head),
        cmocka_unit_test(qkv_rows_have_groups_or_blocks),
        cmocka_unit_test(linear_weights_are_transposed),
        cmocka_unit_test(bf16_and_f16_convert_to_f32_exactly),
        cmocka_unit_test(gpt2_round_trip_is_bit_identical),
        cmocka_unit_test(reads_older_names_shards_and_missing_prefixes),
        cmocka_unit_test(refuses_unsupported_gpt2_settings),
        cmocka_unit_test(every_tanh_gelu_is_exported_as_gelu_new),
        cmocka_unit_test(refuses_to_export_what_gpt2_cannot_express),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
