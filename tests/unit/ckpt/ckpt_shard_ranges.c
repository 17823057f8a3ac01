/*
 * Shard ranges of checkpoints: in each parallel layout, the ranks together write each byte of a checkpoint once, the
 * files equal those of one rank, and each rank loads its own shard.
 */
#include "ckpt_fixture.h"
#include "tensor/half.h"

/* Return the value of element k of an unsharded tensor. */
static float value_of_element(const struct meg_param *row, int64_t k)
{
    return (float)(strlen(row->name) % 7 * 2 + 1) * (float)(k % 64 + 1);
}

/* A simulated rank: its parameter table and the values of its shards. */
struct rank {
    struct meg_mesh mesh;
    struct meg_params p;
    struct meg_elem_range *span;
    int nspans;
    float *flat, *packed; /* the rank's flat buffer, and the elements of the spans, concatenated */
};

/*
 * Divide the flat buffer into ranges of at most 101 elements, assign ranges i, i + n, i + 2 n, ... to r, and copy their
 * elements to r->packed.
 */
static void assign_ranges(struct rank *r, int64_t i, int64_t n)
{
    int64_t at = 0;

    r->packed = meg_new((size_t)r->p.flat_numel * sizeof *r->packed + 1);
    r->span = meg_new((size_t)r->p.flat_numel * sizeof *r->span);
    for (int64_t begin = 0, i_range = 0; begin < r->p.flat_numel; i_range++) {
        const int64_t len = 1 + i_range * 37 % 101, end = begin + len < r->p.flat_numel ? begin + len : r->p.flat_numel;

        if (i_range % n == i) {
            r->span[r->nspans++] = (struct meg_elem_range){ begin, end };
            memcpy(r->packed + at, r->flat + begin, (size_t)(end - begin) * sizeof *r->flat);
            at += end - begin;
        }
        begin = end;
    }
}

static void make_rank(struct rank *r, const struct meg_model_conf *m, const struct meg_layout *l, int64_t i)
{
    *r = (struct rank){ 0 };
    meg_mesh_init_dry(&r->mesh, l, i);
    r->mesh.world = &meg_comm_self;
    meg_model_params(&r->p, m, &r->mesh);
    r->flat = meg_new((size_t)r->p.flat_numel * sizeof *r->flat);
    for (int k = 0; k < r->p.n; k++)
        for (int64_t j = 0; j < meg_param_num_shard_ranges(&r->p.row[k]); j++) {
            const struct meg_param_shard_range run = meg_param_shard_range_at(&r->p.row[k], j);

            for (int64_t x = 0; x < run.n; x++)
                r->flat[r->p.row[k].offset + run.local + x] = value_of_element(&r->p.row[k], run.global + x);
        }
    assign_ranges(r, r->mesh.coords.dp, l->dp);
}

static void free_rank(struct rank *r)
{
    meg_params_free(&r->p);
    free(r->flat);
    free(r->packed);
    free(r->span);
}

static const struct meg_layout layouts[] = {
    { .tp = 1, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = 1, .vp = 1 },
    { .tp = 2, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = 2, .vp = 1 },
    { .tp = 1, .cp = 1, .dp = 3, .pp = 1, .ep = 1, .etp = 1, .vp = 1 },
    { .tp = 1, .cp = 1, .dp = 1, .pp = 4, .ep = 1, .etp = 1, .vp = 1 },
    { .tp = 2, .cp = 2, .dp = 2, .pp = 2, .ep = 1, .etp = 2, .vp = 2 },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, FILES = 12 };

static struct meg_layout layout(int i, const struct meg_model_conf *m)
{
    static int64_t first_layer[] = { 0, 1, 2, 3, 4 };
    struct meg_layout l = layouts[i];

    l.layers = 4;
    l.first_layer = l.pp > 1 ? first_layer : NULL;
    meg_model_set_ties(&l, m);
    return l;
}

static struct meg_model_conf model(void)
{
    struct meg_model_conf m = small_gpt_conf(4, 8);
    struct meg_err e;

    m.swiglu = true;
    m.has_bias = true;
    assert_int_equal(meg_model_conf_check(&m, &e), 0);
    return m;
}

/* Write the files to image as the ranks of a layout do, and check that each byte is written once. */
static void write_files(char *image[FILES], int64_t nbytes[FILES], const struct meg_model_conf *m,
                        const struct meg_layout *l)
{
    unsigned char *times[FILES];

    for (int64_t i = 0; i < meg_layout_world(l); i++) {
        struct ckpt_extent *x;
        struct ckpt_file *f;
        struct rank r;
        int64_t n, of_extents = 0, of_slots;
        int nfiles;

        make_rank(&r, m, l, i);
        const struct meg_ckpt_shard slot[] = { { .data = r.flat },
                                               { .name = "exp_avg", .data = r.flat },
                                               { .name = "exp_avg_sq",
                                                 .data = r.packed,
                                                 .ranges = r.span,
                                                 .nranges = r.nspans,
                                                 .replica = (int)r.mesh.coords.cp,
                                                 .nreplicas = (int)l->cp } };
        const struct meg_ckpt_save_args s = {
            .model = m, .mesh = &r.mesh, .params = &r.p, .weights = slot[0], .optim = slot + 1, .noptim = 2
        };
        nfiles = ckpt_list_files(&f, &s);
        assert_int_equal(nfiles, FILES);
        for (int k = 0; i == 0 && k < FILES; k++) {
            nbytes[k] = f[k].nbytes;
            image[k] = meg_new((size_t)f[k].nbytes);
            times[k] = meg_new((size_t)f[k].nbytes);
            memcpy(image[k], f[k].header.s, f[k].header.n);
            memset(times[k], 1, f[k].header.n);
        }
        n = ckpt_list_extents(&x, f, nfiles, &s);
        for (int64_t k = 0; k < n; k++) {
            assert_true(x[k].offset >= 0 && x[k].offset + (int64_t)x[k].nbytes <= nbytes[x[k].file]);
            memcpy(image[x[k].file] + x[k].offset, x[k].data, x[k].nbytes);
            for (size_t b = 0; b < x[k].nbytes; b++)
                times[x[k].file][x[k].offset + (int64_t)b]++;
            of_extents += (int64_t)x[k].nbytes;
        }
        of_slots = meg_ckpt_write_nbytes(&r.p, &r.mesh, slot, 3);
        assert_int_equal(of_extents, of_slots);
        ckpt_free_files(f, nfiles);
        free(x);
        free_rank(&r);
    }
    for (int k = 0; k < FILES; k++) {
        for (int64_t b = 0; b < nbytes[k]; b++)
            assert_int_equal(times[k][b], 1);
        free(times[k]);
    }
}

static void every_layout_writes_the_same_files(void **state)
{
    const struct meg_model_conf m = model();
    char *one[FILES], *more[FILES];
    int64_t none[FILES], nmore[FILES];

    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        const struct meg_layout l = layout(i, &m);

        write_files(i ? more : one, i ? nmore : none, &m, &l);
        for (int k = 0; i && k < FILES; k++) {
            assert_int_equal(none[k], nmore[k]);
            assert_memory_equal(one[k], more[k], (size_t)none[k]);
            free(more[k]);
        }
    }
    for (int k = 0; k < FILES; k++)
        free(one[k]);
}

/*
 * On each rank of each layout, load the weights rounded to bf16, ranges of the weights and, if nslots is 3, exp_avg,
 * and compare them.
 */
static void load_shards(const struct meg_ckpt *c, const struct meg_model_conf *m, int nslots)
{
    struct meg_err e;

    for (int i = 0; i < LAYOUTS; i++) {
        const struct meg_layout l = layout(i, m);

        for (int64_t k = 0; k < meg_layout_world(&l); k++) {
            struct rank r;
            float *flat, *packed;
            uint16_t *half;

            make_rank(&r, m, &l, k);
            flat = meg_new((size_t)r.p.flat_numel * sizeof *flat);
            packed = meg_new((size_t)r.p.flat_numel * sizeof *packed);
            half = meg_new((size_t)r.p.flat_numel * sizeof *half);
            const struct meg_ckpt_shard slot[] = { { .data = half, .dtype = MEG_DTYPE_BF16 },
                                                   { .name = MEG_CKPT_MAIN_PARAMS,
                                                     .data = packed,
                                                     .ranges = r.span,
                                                     .nranges = r.nspans }, /* ranges of the weights */
                                                   { .name = "exp_avg", .data = flat } };
            assert_int_equal(meg_ckpt_load(c, &r.p, &r.mesh, slot, nslots, &e), 0);
            if (nslots == 3)
                assert_memory_equal(flat, r.flat, (size_t)r.p.flat_numel * sizeof *flat);
            for (int64_t x = 0; x < r.p.flat_numel; x++)
                assert_int_equal(half[x], meg_to_bf16(r.flat[x]));
            for (int64_t x = 0, at = 0; x < r.nspans; at += r.span[x].end - r.span[x].begin, x++)
                assert_memory_equal(packed + at, r.flat + r.span[x].begin,
                                    (size_t)(r.span[x].end - r.span[x].begin) * sizeof *flat);
            free(flat);
            free(packed);
            free(half);
            free_rank(&r);
        }
    }
}

/* Load a native checkpoint, and a Megatron checkpoint with tensor-parallel size 2. */
static void every_layout_reads_its_shards(void **state)
{
    const struct meg_ckpt_megatron_conf to = {
        .tensor = 2, .pipeline = 1, .vocab_multiple = 8, .iteration = 3, .consumed_samples = -1
    };
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture b = { .m = model() };
    const struct meg_layout one = layout(0, &b.m);
    struct rank unsharded;

    (void)state;
    make_rank(&unsharded, &b.m, &one, 0);
    b.p = unsharded.p;
    b.w = b.exp_avg = b.exp_avg_sq = unsharded.flat;
    const struct meg_ckpt_save_args s = { .dir = "foreign", .model = &b.m, .params = &b.p, .weights = { .data = b.w } };

    save_ok(&b, "parts", 3, 0, -1);
    c = open_ok("parts", MEG_UNSET);
    load_shards(c, &b.m, 3);
    meg_ckpt_close(c);
    assert_int_equal(meg_ckpt_export_megatron(&s, &to, &e), 0);
    c = open_ok("foreign", MEG_UNSET);
    assert_int_equal(meg_ckpt_set_vocab_size(c, 11, &e), 0);
    load_shards(c, &b.m, 2);
    meg_ckpt_close(c);
    free_rank(&unsharded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_writes_the_same_files),
        cmocka_unit_test(every_layout_reads_its_shards),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
