/*
 * Distributed checkpoints (torch_dist) in hand-made directories: chunks of stacked, separate and flattened tensors,
 * flat buffers, refusals.
 */
#define _GNU_SOURCE /* memmem */
#include "ckpt_dist_builder.h"

/* How a directory is made. */
struct cut {
    int64_t shards; /* tensor-parallel shards */
    bool is_stacked, is_flat, has_halves;
    int64_t padding; /* padding rows of the vocabulary */
};

/* Print the name of a parameter in Megatron's checkpoints; return its layer, or -1. */
static int foreign_name(char out[CKPT_NAME_CHARS], const char *native, bool is_stacked)
{
    static const char *const norms[][2] = { { "input_layernorm.", "self_attention.linear_qkv.layer_norm_" },
                                            { "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_" } };
    const char *rest = native;
    int layer = -1, n = 0;

    if (sscanf(native, "decoder.layers.%d.%n", &layer, &n) != 1) {
        snprintf(out, CKPT_NAME_CHARS, "%s", native);
        return -1;
    }
    rest += n;
    n = is_stacked ? snprintf(out, CKPT_NAME_CHARS, "decoder.layers.")
                   : snprintf(out, CKPT_NAME_CHARS, "%.*s", n, native);
    for (int i = 0; i < 2; i++)
        if (strncmp(rest, norms[i][0], strlen(norms[i][0])) == 0) {
            snprintf(out + n, CKPT_NAME_CHARS - (size_t)n, "%s%s", norms[i][1], rest + strlen(norms[i][0]));
            return layer;
        }
    snprintf(out + n, CKPT_NAME_CHARS - (size_t)n, "%s", rest);
    return layer;
}

/* Rows and columns of a matrix: [row, row + nrows) and [col, col + ncols). */
struct box {
    int64_t row, nrows, col, ncols;
};

/* Add a part of v, a matrix of `cols` columns, as a chunk at row `at` of layer `layer` of the current tensor. */
static void add_box(struct dist_builder *b, const float *v, int64_t cols, struct box part, int64_t layer, int64_t at)
{
    const int64_t offset[3] = { layer, at, part.col }, size[3] = { 1, part.nrows, part.ncols };
    const int first = layer < 0;
    float *box = meg_new((size_t)(part.nrows * part.ncols) * sizeof *box);

    for (int64_t i = 0; i < part.nrows; i++)
        memcpy(box + i * part.ncols, v + (part.row + i) * cols + part.col, (size_t)part.ncols * sizeof *box);
    dist_add_chunk(b, offset + first, size + first, box);
    free(box);
}

/* Add a parameter of a layer, or of no layer (-1), as chunks of the current tensor. */
static void add_chunks(struct dist_builder *b, const struct meg_param *row, const float *v, const struct cut *cut,
                       int64_t layer)
{
    const int64_t cols = row->ndim > 1 ? row->dim[1] : 1;
    const bool by_col = strstr(row->name, "linear_proj.weight") || strstr(row->name, "linear_fc2.weight");
    const int64_t shards = row->dim[0] % cut->shards ? 1 : cut->shards;

    for (int64_t i = shards; i-- > 0;) /* the last shard first: the order of chunks is arbitrary */
        if (by_col)
            add_box(b, v, cols, (struct box){ 0, row->dim[0], i * cols / shards, cols / shards }, layer, 0);
        else
            add_box(b, v, cols, (struct box){ i * row->dim[0] / shards, row->dim[0] / shards, 0, cols }, layer,
                    i * row->dim[0] / shards);
}

/* Add a parameter of all layers, flattened: a part of a shard of rows, in ranges that do not end with rows. */
static void add_flat(struct dist_builder *b, const struct meg_params *p, const struct meg_param *row, const float *v,
                     const struct cut *cut, const char *name)
{
    const int64_t cols = row->ndim > 1 ? row->dim[1] : 1, rows = row->dim[0] / cut->shards, n = rows * cols;
    const int64_t original[3] = { p->nlayer_groups - 2, row->dim[0], cols };
    const int64_t dim[4] = { original[0], cut->shards, 1, n }, one_col[3] = { original[0], cut->shards, n };
    const int64_t cuts[4] = { 0, n / 3, n - 1, n };

    dist_tensor_begin(b, name, row->ndim > 1 ? dim : one_col, row->ndim + 2);
    for (int64_t layer = 0; layer < original[0]; layer++) {
        char native[CKPT_NAME_CHARS];
        const struct meg_param *own;

        snprintf(native, sizeof native, "decoder.layers.%d.%s", (int)layer, strchr(row->name + 15, '.') + 1);
        own = meg_params_find(p, native);
        for (int64_t i = 0; i < cut->shards; i++)
            for (int k = 0; k < 3; k++) {
                const int64_t offset[4] = { layer, i, row->ndim > 1 ? 0 : cuts[k], cuts[k] };
                const int64_t size[4] = { 1, 1, row->ndim > 1 ? 1 : cuts[k + 1] - cuts[k], cuts[k + 1] - cuts[k] };

                if (cuts[k] < cuts[k + 1])
                    dist_add_chunk(b, offset, size, v + own->offset + i * n + cuts[k]);
            }
    }
    dist_tensor_end(b);
    dist_put_original(b, original, row->ndim + 1);
}

/* Add gate or up, a half of the rows of linear_fc1, as a tensor of its own. */
static void add_half(struct dist_builder *b, const struct meg_param *row, const float *v, const char *name, int half)
{
    const int64_t cols = row->ndim > 1 ? row->dim[1] : 1, dim[2] = { row->dim[0] / 2, cols };
    char part[CKPT_NAME_CHARS];

    snprintf(part, sizeof part, "%.140s_%c", name, half ? 'v' : 'w');
    dist_tensor_begin(b, part, dim, row->ndim);
    add_box(b, v, cols, (struct box){ half * dim[0], dim[0], 0, cols }, -1, 0);
    dist_tensor_end(b);
}

/* Add the parameters v, or a state of the optimizer if prefix is not empty. */
static void add_params(struct dist_builder *b, const struct ckpt_fixture *f, const float *v, const char *prefix,
                       const struct cut *cut)
{
    for (int i = 0; i < f->p.n; i++) {
        const struct meg_param *row = &f->p.row[i];
        char name[CKPT_NAME_CHARS], full[2 * CKPT_NAME_CHARS];
        const int layer = foreign_name(name, row->name, cut->is_stacked);
        int64_t dim[3] = { f->m.num_layers, row->dim[0], row->ndim > 1 ? row->dim[1] : 1 };
        const bool is_stacked = layer >= 0 && cut->is_stacked;

        if (layer > 0 && is_stacked)
            continue;
        snprintf(full, sizeof full, "%s%s", prefix, name);
        if (is_stacked && cut->is_flat && row->dim[0] % cut->shards == 0) {
            add_flat(b, &f->p, row, v, cut, full);
            continue;
        }
        if (cut->has_halves && strstr(name, "linear_fc1.weight")) {
            add_half(b, row, v + row->offset, full, 0);
            add_half(b, row, v + row->offset, full, 1);
            continue;
        }
        dim[1] += row->is_vocab ? cut->padding : 0;
        dist_tensor_begin(b, full, dim + !is_stacked, row->ndim + is_stacked);
        for (int k = 0; k < (is_stacked ? (int)f->m.num_layers : 1); k++) {
            char native[CKPT_NAME_CHARS];

            snprintf(native, sizeof native, "decoder.layers.%d.%s", k,
                     is_stacked ? strchr(row->name + 15, '.') + 1 : "");
            add_chunks(b, row, v + (is_stacked ? meg_params_find(&f->p, native) : row)->offset, cut,
                       is_stacked ? k : -1);
        }
        if (row->is_vocab && cut->padding) {
            float *zeros = meg_new((size_t)(cut->padding * dim[2]) * sizeof *zeros);

            add_box(b, zeros, dim[2], (struct box){ 0, cut->padding, 0, dim[2] }, -1, row->dim[0]);
            free(zeros);
        }
        dist_tensor_end(b);
    }
}

static void build(const struct ckpt_fixture *f, const struct cut *cut)
{
    struct dist_builder b;

    dist_begin(&b, "dist");
    add_params(&b, f, f->w, "", cut);
    add_params(&b, f, f->exp_avg, "optimizer.state.exp_avg.", cut);
    add_params(&b, f, f->w, "optimizer.state.param.", cut);
    dist_end(&b, &f->m);
}

static void check_weights(const struct ckpt_fixture *f)
{
    struct meg_ckpt *c = open_ok("dist", MEG_UNSET);
    float *w = new_params(&f->p, 9), *exp_avg = new_params(&f->p, 9), *main = new_params(&f->p, 9);
    const struct meg_ckpt_shard shard[] = { { .data = w },
                                            { .name = "exp_avg", .data = exp_avg },
                                            { .name = MEG_CKPT_MAIN_PARAMS, .data = main } };
    const size_t nbytes = (size_t)f->p.flat_numel * 4;
    struct meg_err e;

    assert_string_equal(meg_ckpt_format(c), "torch_dist");
    assert_int_equal(meg_ckpt_iteration(c), 7);
    assert_int_equal(meg_ckpt_vocab_size(c), f->m.vocab_size);
    if (meg_ckpt_verify(c, &e) < 0 || meg_ckpt_load(c, &f->p, &meg_mesh_one, shard, 3, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(w, f->w, nbytes);
    assert_memory_equal(exp_avg, f->exp_avg, nbytes);
    assert_memory_equal(main, f->w, nbytes);
    meg_ckpt_close(c);
    free(w);
    free(exp_avg);
    free(main);
}

static void weights_and_states_are_read_however_they_are_cut(void **state)
{
    struct ckpt_fixture f;

    (void)state;
    make_gated(&f, 3, 1);
    for (int64_t shards = 1; shards <= 2; shards++)
        for (int i = 0; i < 16; i++) {
            const struct cut cut = { .shards = shards,
                                     .is_stacked = i & 1,
                                     .is_flat = i & 2,
                                     .has_halves = (i & 4) && !(i & 1),
                                     .padding = i & 8 ? 5 : 0 };

            build(&f, &cut);
            check_weights(&f);
        }
    free_fixture(&f);
}

/* Replace the first occurrence of from [n] in a file by to [n]. */
static void replace(const char *path, const char *from, const char *to, size_t n)
{
    struct meg_str s = read_bytes(path);
    char *at = memmem(s.s, s.n, from, n);

    assert_non_null(at);
    memcpy(at, to, n);
    put_file(path, s.s, s.n);
    meg_str_free(&s);
}

static void assert_refused(int code, const char *const *expected)
{
    struct meg_ckpt *c = NULL;
    struct meg_err e;

    assert_int_equal(meg_ckpt_open(&c, "dist", MEG_UNSET, &e), code);
    for (; *expected; expected++)
        if (!strstr(e.msg, *expected))
            fail_msg("'%s' does not contain '%s'", e.msg, *expected);
}

#define EXPECT(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void damaged_directories_are_refused(void **state)
{
    static const struct cut cut = { .shards = 1, .is_stacked = true };
    static const struct {
        const char *file, *from, *to, *expected[3];
    } bad[] = {
        { ".metadata", "ChunkStorageMetadata", "ChunkStorageMetabase", { "dist/.metadata", "chunk 0 has no offsets" } },
        { ".metadata", "TensorProperties", "TensorPropertees", { "dist/.metadata", "has no TensorProperties" } },
        { ".metadata", "MetadataIndex", "MetadataIndes", { "dist/.metadata", "is not a MetadataIndex" } },
        { ".metadata", "_StorageInfo", "_StorageInfa", { "dist/.metadata", "is not a _StorageInfo" } },
        { ".metadata", "__0_0.distcp", "../_0.distcp", { "dist/.metadata", "is not the name of a file" } },
        { ".metadata", "\nMetadata\n", "\nMetabase\n", { "dist/.metadata", "expected a Metadata" } },
        { ".metadata", "float32", "float64", { "__0_0.distcp: item at byte 0", "dtype F32", "F64" } },
        { "__0_0.distcp",
          "PK\3\4",
          "\x28\xb5\x2f\xfd",
          { "__0_0.distcp: item at byte 0", "is not a file of torch.save" } },
        { "__0_0.distcp", "PK\1\2", "PK\1\3", { "__0_0.distcp: item at byte 0", "central directory" } },
        { "__0_0.distcp", "_rebuild_tensor_v2", "_rebuild_tensor_v9", { "__0_0.distcp: item at byte 0", "a tensor" } },
        { "metadata.json", "torch_dist", "torch_disk", { "dist/metadata.json", "torch_disk" } },
    };
    struct ckpt_fixture f;
    struct meg_str s;

    (void)state;
    make_gated(&f, 3, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[100];

        build(&f, &cut);
        snprintf(path, sizeof path, "dist/%s", bad[i].file);
        replace(path, bad[i].from, bad[i].to, strlen(bad[i].from));
        assert_refused(MEG_EFORMAT, EXPECT(bad[i].expected[0], bad[i].expected[1],
                                           bad[i].expected[2] ? bad[i].expected[2] : bad[i].expected[0]));
    }
    build(&f, &cut);
    replace("dist/__0_0.distcp", "\1\0\0\0t\x89", "\0\0\0\0t\x89", 6); /* the stride of the last axis */
    assert_refused(MEG_EFORMAT, EXPECT("__0_0.distcp: item at byte ", "is not contiguous"));
    build(&f, &cut);
    s = read_bytes("dist/__0_0.distcp");
    put_file("dist/__0_0.distcp", s.s, 100);
    meg_str_free(&s);
    assert_refused(MEG_EFORMAT, EXPECT("__0_0.distcp: item at byte 0", "ends at byte 100", "truncated"));
    assert_int_equal(unlink("dist/__0_0.distcp"), 0);
    assert_refused(MEG_ENOENT, EXPECT("dist/__0_0.distcp"));
    build(&f, &cut);
    assert_int_equal(unlink("dist/metadata.json"), 0);
    assert_refused(MEG_EFORMAT, EXPECT("no metadata.json", "interrupted", "--ckpt-step"));
    free_fixture(&f);
}

/* Build a checkpoint with one tensor of 4 elements, from chunks of the given offsets and sizes. */
static void build_vector(const struct ckpt_fixture *f, const int64_t (*chunk)[2], int n, const char *transform)
{
    static const float v[8] = { 0 };
    struct dist_builder b;
    const int64_t dim = 4;

    dist_begin(&b, "dist");
    b.transform = transform;
    dist_tensor_begin(&b, "decoder.final_layernorm.weight", &dim, 1);
    for (int i = 0; i < n; i++)
        dist_add_chunk(&b, &chunk[i][0], &chunk[i][1], v);
    dist_tensor_end(&b);
    dist_end(&b, &f->m);
}

static void chunks_must_be_the_tensor(void **state)
{
    static const int64_t hole[][2] = { { 3, 1 }, { 0, 2 } }, overlap[][2] = { { 0, 3 }, { 2, 2 } },
                         outside[][2] = { { 0, 3 }, { 3, 2 } }, same[][2] = { { 0, 4 }, { 0, 4 } },
                         all[][2] = { { 0, 4 } }, reversed[][2] = { { 3, 1 }, { 0, 3 } };
    struct ckpt_fixture f;
    struct meg_str s;

    (void)state;
    make_gated(&f, 3, 1);
    build_vector(&f, hole, 2, NULL);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "decoder.final_layernorm.weight",
                                       "3 of 4 elements; parts of the tensor are missing"));
    build_vector(&f, overlap, 2, NULL);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "the chunks at [0] and [2] overlap"));
    build_vector(&f, outside, 2, NULL);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "the chunk of shape [2] at [3] exceeds it"));
    build_vector(&f, same, 2, NULL);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "two entries of storage_data are for the same chunk"));
    build_vector(&f, all, 1, "zstd");
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "transformed by 'zstd'", "byte 0"));
    build_vector(&f, reversed, 2, NULL);
    s = read_bytes("dist/__0_0.distcp");
    put_file("dist/__0_0.distcp", s.s, 10);
    meg_str_free(&s);
    assert_refused(MEG_EFORMAT, EXPECT("__0_0.distcp: item at byte ", "ends at byte 10"));
    build_vector(&f, all, 1, NULL);
    assert_refused(MEG_EFORMAT, EXPECT("no two-dimensional tensor embedding.word_embeddings.weight"));
    free_fixture(&f);
}

static void items_must_not_overlap(void **state)
{
    static const float v[4] = { 0 };
    const int64_t dim = 4, half = 2, offset[2] = { 0, 2 };
    struct ckpt_fixture f;
    struct dist_builder b;

    (void)state;
    make_gated(&f, 3, 1);
    dist_begin(&b, "dist");
    b.overlap = 1;
    dist_tensor_begin(&b, "decoder.final_layernorm.weight", &dim, 1);
    dist_add_chunk(&b, &offset[0], &half, v);
    dist_add_chunk(&b, &offset[1], &half, v);
    dist_tensor_end(&b);
    dist_end(&b, &f.m);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "the items at bytes 0 and ", "__0_0.distcp overlap"));
    free_fixture(&f);
}

static void huge_shapes_are_refused(void **state)
{
    static const float v[1] = { 0 };
    const int64_t zero = 0, one = 1, dim = INT64_MAX / 16 + 1;
    struct ckpt_fixture f;
    struct dist_builder b;

    (void)state;
    make_gated(&f, 3, 1);
    dist_begin(&b, "dist");
    dist_tensor_begin(&b, "decoder.final_layernorm.bias", &one, 1);
    dist_add_chunk(&b, &zero, &one, v);
    dist_tensor_end(&b);
    dist_tensor_begin(&b, "decoder.final_layernorm.weight", &dim, 1);
    dist_list_chunk(&b, &zero, &dim);
    dist_tensor_end(&b);
    dist_end(&b, &f.m);
    assert_refused(MEG_EFORMAT, EXPECT("dist/.metadata", "is too large"));
    free_fixture(&f);
}

static void two_layouts_of_the_optimizer_are_refused(void **state)
{
    static const struct cut cut = { .shards = 1, .is_stacked = true };
    struct ckpt_fixture f;
    struct dist_builder b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_gated(&f, 3, 1);
    dist_begin(&b, "dist");
    add_params(&b, &f, f.w, "", &cut);
    add_params(&b, &f, f.exp_avg, "optimizer.state.exp_avg.", &cut);
    add_params(&b, &f, f.exp_avg, "chained_0.optimizer.state.exp_avg.", &cut);
    dist_end(&b, &f.m);
    c = open_ok("dist", MEG_UNSET);
    assert_int_equal(meg_ckpt_load(c, &f.p, &meg_mesh_one,
                                   &(const struct meg_ckpt_shard){ .name = "exp_avg", .data = f.exp_avg_sq }, 1, &e),
                     MEG_EFORMAT);
    assert_non_null(strstr(e.msg, "two layouts: optimizer.state.exp_avg."));
    meg_ckpt_close(c);
    free_fixture(&f);
}

static void a_chunk_may_be_listed_several_times(void **state)
{
    static const float v[4] = { 0 };
    const int64_t zero = 0, dim = 4;
    struct ckpt_fixture f;

    (void)state;
    make_gated(&f, 3, 1);
    for (int n = 1; n <= 99; n += 98) {
        struct dist_builder b;

        dist_begin(&b, "dist");
        dist_tensor_begin(&b, "decoder.final_layernorm.weight", &dim, 1);
        dist_add_chunk(&b, &zero, &dim, v);
        for (int i = 0; i < n; i++)
            dist_list_chunk(&b, &zero, &dim);
        dist_tensor_end(&b);
        dist_end(&b, &f.m);
        assert_refused(MEG_EFORMAT,
                       EXPECT(n == 1 ? "found no two-dimensional tensor embedding" : "is repeated more than"));
    }
    free_fixture(&f);
}

/* Write the exp_avg of all parameters as one flat buffer (dp_reshardable), in the reverse of the order of `native`. */
static void build_buffers(const struct ckpt_fixture *f, const char *const *native, int n)
{
    static const struct cut cut = { .shards = 1, .is_stacked = true };
    static const float gap[MEG_PARAM_ALIGN] = { 1e30F };
    const char *name = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, torch.float32)."
                       "bucket_idx_0.exp_avg";
    struct dist_builder b;
    int64_t numel = 0;

    dist_begin(&b, "dist");
    add_params(&b, f, f->w, "", &cut);
    for (int pass = 0; pass < 2; pass++) {
        int64_t at = 0;

        if (pass)
            dist_tensor_begin(&b, name, &numel, 1);
        for (int i = n; i-- > 0;) {
            const struct meg_param *row = meg_params_find(&f->p, native[i]);
            const int64_t pad = (MEG_PARAM_ALIGN - at % MEG_PARAM_ALIGN) % MEG_PARAM_ALIGN;

            if (pass && pad)
                dist_add_chunk(&b, &at, &pad, gap);
            at += pad;
            if (pass)
                dist_add_chunk(&b, &at, &row->numel, f->exp_avg + row->offset);
            at += row->numel;
        }
        numel = at;
    }
    dist_tensor_end(&b);
    dist_end(&b, &f->m);
}

static void flat_buffers_are_read_in_the_order_of_registration(void **state)
{
    static const char *const layer[] = { "input_layernorm",
                                         "self_attention.linear_proj",
                                         "self_attention.linear_qkv",
                                         "pre_mlp_layernorm",
                                         "mlp.linear_fc1",
                                         "mlp.linear_fc2" };
    const char *native[64] = { "embedding.word_embeddings.weight", "embedding.position_embeddings.weight" };
    char names[36][CKPT_NAME_CHARS];
    struct ckpt_fixture f;
    struct meg_ckpt *c;
    struct meg_err e;
    float *exp_avg;
    int n = 2;

    (void)state;
    make_gated(&f, 3, 1);
    for (int i = 0; i < 36; i++) {
        snprintf(names[i], sizeof names[i], "decoder.layers.%d.%s.%s", i / 12, layer[i % 12 / 2],
                 i % 2 ? "bias" : "weight");
        if (meg_params_find(&f.p, names[i]))
            native[n++] = names[i];
    }
    native[n++] = "decoder.final_layernorm.weight";
    native[n++] = "decoder.final_layernorm.bias";
    assert_int_equal(n, f.p.n);
    exp_avg = new_params(&f.p, 9);
    for (int swapped = 0; swapped < 4; swapped++) {
        const struct meg_ckpt_shard shard = { .name = "exp_avg", .data = exp_avg };

        if (swapped == 3) { /* the first parameter follows once more at the end */
            memmove(native + 1, native, (size_t)n * sizeof *native);
            n++;
        } else if (swapped) { /* parameters of different sizes are not where the order has them */
            const int first = swapped == 1 ? 3 : 11, second = first + (swapped == 1 ? 1 : 2);
            const char *name = native[first];

            native[first] = native[second];
            native[second] = name;
        }
        build_buffers(&f, native, n);
        c = open_ok("dist", MEG_UNSET);
        assert_int_equal(meg_ckpt_load(c, &f.p, &meg_mesh_one, &shard, 1, &e), swapped ? MEG_EFORMAT : 0);
        if (swapped)
            assert_non_null(strstr(e.msg, "--dist-ckpt-optim-fully-reshardable"));
        else
            assert_memory_equal(exp_avg, f.exp_avg, (size_t)f.p.flat_numel * 4);
        meg_ckpt_close(c);
        for (int i = 0; swapped && swapped < 3 && i < 36; i++)
            native[2 + i] = names[i];
    }
    free(exp_avg);
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(weights_and_states_are_read_however_they_are_cut),
                                        cmocka_unit_test(damaged_directories_are_refused),
                                        cmocka_unit_test(chunks_must_be_the_tensor),
                                        cmocka_unit_test(items_must_not_overlap),
                                        cmocka_unit_test(huge_shapes_are_refused),
                                        cmocka_unit_test(two_layouts_of_the_optimizer_are_refused),
                                        cmocka_unit_test(a_chunk_may_be_listed_several_times),
                                        cmocka_unit_test(flat_buffers_are_read_in_the_order_of_registration) };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
