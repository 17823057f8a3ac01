/*
 * Measure the CPU time and memory that startup and a save need on one rank of 10,000 with 46,000 parameter tensors:
 * groups, parameter table, shards, model, checkpoint.  Each simulated rank is a process; no network is used.
 *
 * The broadcasts of rank 0 are recorded in a file, which the other ranks replay.  An all-reduce leaves the rank's own
 * values unchanged.
 */
#include "child.h"
#include "ckpt_fixture.h"
#include <inttypes.h>
#include <sys/resource.h>
#include <time.h>
#include "cpu/cpu.h"
#include "optim/zero/shard.h"
#include "sanitized.h"

enum { WORLD = 10000, LAYERS = 3840, ROWS = 12 * LAYERS + 4 };
#define BROADCASTS "broadcasts"

/* Limit of the peak memory of a rank. */
enum { MAX_MIB = IS_SANITIZED ? 4000 : 400 };

/* ---- a communicator of 10,000 ranks ------------------------------------------------------------- */

static FILE *broadcasts;

/* An all-reduce leaves the values of this rank. */
static struct meg_work *start(struct meg_comm *c, struct meg_stream *st, const struct meg_comm_call *x)
{
    const size_t nbytes = (size_t)x->n * meg_dtype_size(x->dtype);

    (void)st;
    if (x->op == MEG_ALL_REDUCE)
        return NULL;
    assert_int_equal(x->op, MEG_BROADCAST);
    assert_int_equal(x->peer, 0);
    if (!broadcasts)
        broadcasts = fopen(BROADCASTS, c->rank == 0 ? "w" : "r");
    assert_int_equal(c->rank == 0 ? fwrite(x->out, 1, nbytes, broadcasts) : fread(x->out, 1, nbytes, broadcasts),
                     nbytes);
    return NULL;
}

static struct meg_comm *split(struct meg_comm *world, int color, const char *name)
{
    struct meg_comm *g = meg_new(sizeof *g);

    *g = (struct meg_comm){ .op = world->op, .host = world->op, .name = name, .rank = world->rank, .size = 2 };
    assert_in_range(color, 0, WORLD - 1);
    return g;
}

static void close_comm(struct meg_comm *c)
{
    free(c);
}

static const struct meg_comm_ops comm_ops = { .start = start, .split = split, .close = close_comm };

/* ---- the model and its ranks -------------------------------------------------------------------- */

static struct meg_model_conf deep_gpt(void)
{
    struct meg_model_conf m = small_gpt_conf(LAYERS, 8);
    struct meg_err e;

    m.attn.a = 8;
    m.attn.d = m.attn.g = MEG_UNSET;
    m.mlp.f = 8;
    m.vocab_size = 16;
    assert_int_equal(meg_model_conf_check(&m, &e), 0);
    return m;
}

enum { TENTH = LAYERS / 10 };
static int64_t ten_stages[] = { 0,         TENTH,     2 * TENTH, 3 * TENTH, 4 * TENTH, 5 * TENTH,
                                6 * TENTH, 7 * TENTH, 8 * TENTH, 9 * TENTH, LAYERS };

/* ZeRO-1 with 10 pipeline stages, and ZeRO-3, where each layer group is a bucket. */
static const struct meg_layout layouts[] = {
    { .tp = 8,
      .cp = 1,
      .dp = 125,
      .pp = 10,
      .ep = 1,
      .etp = 8,
      .vp = 1,
      .layers = LAYERS,
      .first_layer = ten_stages,
      .zero = { .nshards = 125, .bucket_numel = 4096, .stage = 1 } },
    { .tp = 8,
      .cp = 1,
      .dp = 1250,
      .pp = 1,
      .ep = 1,
      .etp = 8,
      .vp = 1,
      .layers = LAYERS,
      .zero = { .nshards = 1250, .stage = 3 } },
};

struct sim {
    int64_t rank;
    const struct meg_layout *layout;
    bool is_wide; /* use the parameter table of wide_params, not that of deep_gpt */
};

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long peak_kib(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* Print the CPU time since the last call in this process, or since its start. */
static void lap(const char *what)
{
    static double last_s;
    const double now_s = cpu_s();

    printf(" %s %.3f", what, now_s - last_s);
    last_s = now_s;
}

/* Build a parameter table of about ROWS rows in few layer groups: 60 layers of 255 experts with 3 matrices each. */
static void wide_params(struct meg_params *p, const struct meg_mesh *mesh)
{
    static const char *const name[3] = { "gate", "up", "down" };
    const int64_t dim[2] = { 8, 8 };

    *p = (struct meg_params){ 0 };
    meg_params_add(p, 0, 2, dim, "embedding.word_embeddings.weight");
    for (int i = 0; i < 60; i++)
        for (int k = 0; k < 3 * 255; k++)
            meg_params_add(p, 1 + i, 2, dim, "decoder.layers.%d.mlp.experts.local_experts.%d.%s.weight", i, k / 3,
                           name[k % 3])
                ->sharding[k % 3 == 2]
                .part[0]
                .axis = MEG_AXIS_TP;
    meg_params_add(p, 61, 2, dim, "output_layer.weight");
    meg_params_shard(p, mesh);
}

/* List the files and extents that the rank would write: the weights, and three optimizer states of its shards. */
static void list_save(const struct meg_mesh *mesh, const struct meg_model_conf *m, const struct meg_params *p,
                      const struct meg_zero_shard *z)
{
    static char data[1]; /* addresses are computed, but not read */
    struct meg_ckpt_shard shard[4];
    struct ckpt_extent *x;
    struct ckpt_file *f;
    int64_t n, nbytes = 0;
    int nfiles;

    for (int i = 0; i < 4; i++)
        shard[i] =
            (struct meg_ckpt_shard){ .data = data, .ranges = z->range, .nranges = z->nbucket_shards, .nreplicas = 1 };
    shard[1].name = MEG_CKPT_MAIN_PARAMS;
    shard[2].name = "exp_avg";
    shard[3].name = "exp_avg_sq";
    const struct meg_ckpt_save_args s = {
        .model = m, .mesh = mesh, .params = p, .weights = shard[0], .optim = shard + 1, .noptim = 3
    };
    nfiles = ckpt_list_files(&f, &s);
    n = ckpt_list_extents(&x, f, nfiles, &s);
    for (int64_t i = 0; i < n; i++)
        nbytes += (int64_t)x[i].nbytes;
    assert_int_equal(nbytes, meg_ckpt_write_nbytes(p, mesh, shard, 4));
    ckpt_free_files(f, nfiles);
    free(x);
    lap("save");
}

static void create_model(const struct meg_model_conf *m, const struct meg_mesh *mesh)
{
    const struct meg_model_run run = {
        .s = 1, .b = 1, .shards_params = mesh->layout.zero.stage == 3, .shards_grads = mesh->layout.zero.stage == 3
    };
    struct meg_model *g;
    struct meg_err e;

    if (meg_model_create(&g, m, &run, meg_device_cpu(), mesh, &e) < 0)
        fail_msg("%s", e.msg);
    meg_model_close(g);
    lap("model");
}

static void load_checkpoint(const struct meg_mesh *mesh, const struct meg_params *p, const struct meg_zero_shard *z)
{
    struct meg_ckpt_shard shard = { .ranges = z->range, .nranges = z->nbucket_shards };
    struct meg_ckpt *c;
    struct meg_err e;

    shard.data = meg_new((size_t)z->numel * sizeof(float) + 1);
    if (meg_ckpt_open_on_all(&c, "deep", MEG_UNSET, mesh->world, &e) < 0)
        fail_msg("%s", e.msg);
    lap("open");
    if (meg_ckpt_load(c, p, mesh, &shard, 1, &e) < 0)
        fail_msg("%s", e.msg);
    lap("load");
    meg_ckpt_close(c);
    free(shard.data);
}

static void start_rank(void *arg)
{
    const struct sim *s = arg;
    const struct meg_model_conf m = deep_gpt();
    struct meg_layout layout = *s->layout;
    struct meg_comm world = {
        .op = &comm_ops, .host = &comm_ops, .name = "world", .rank = (int)s->rank, .size = WORLD
    };
    const double start_s = cpu_s();
    const long start_kib = peak_kib();
    struct meg_params p;
    struct meg_zero_shard z;
    struct meg_mesh mesh;

    printf("rank %" PRId64 " of %d, pp %" PRId64 "%s: CPU s:", s->rank, WORLD, s->layout->pp,
           s->is_wide ? ", wide" : "");
    lap("start");
    meg_model_set_ties(&layout, &m);
    meg_mesh_make(&mesh, &world, &layout);
    lap("groups");
    if (s->is_wide)
        wide_params(&p, &mesh);
    else
        meg_model_params(&p, &m, &mesh);
    assert_in_range(p.n, 45000, 47000);
    lap("table");
    meg_zero_shard_make(&z, &p, &layout, mesh.coords);
    lap("shards");
    list_save(&mesh, &m, &p, &z);
    if (!s->is_wide) {
        create_model(&m, &mesh);
        load_checkpoint(&mesh, &p, &z);
    }
    meg_zero_shard_free(&z);
    meg_params_free(&p);
    meg_mesh_close(&mesh);
    printf("; total %.2f s, %ld MiB\n", cpu_s() - start_s, (peak_kib() - start_kib) >> 10);
    fflush(stdout);
    assert_true((peak_kib() - start_kib) >> 10 < MAX_MIB);
}

/* Save a checkpoint of the deep model on one rank. */
static void save_deep(void *arg)
{
    struct ckpt_fixture b = { .m = deep_gpt(), .mesh = &meg_mesh_one };

    (void)arg;
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    assert_int_equal(b.p.n, ROWS);
    b.w = b.exp_avg = b.exp_avg_sq = new_params(&b.p, 0);
    lap("save on one rank, with files: start");
    save_ok(&b, "deep", 1, 0, -1);
    lap("files");
    printf(" s\n");
}

static void run_in_child(void (*fn)(void *), void *arg)
{
    static struct child c;

    child_run(&c, fn, arg);
    print_message("# %s", c.out);
    if (c.status != 0)
        fail_msg("status %d: %s", c.status, c.err);
}

static void every_rank_starts(void **state)
{
    /* Rank 0 of the first layout records the broadcasts of all layouts, which are those of one checkpoint. */
    static const struct sim sims[] = {
        { .rank = 0, .layout = &layouts[0] },
        { .rank = 0, .layout = &layouts[0], .is_wide = true },
        { .rank = WORLD - 1, .layout = &layouts[1] },
        { .rank = WORLD - 1, .layout = &layouts[1], .is_wide = true },
    };

    (void)state;
    run_in_child(save_deep, NULL);
    for (size_t i = 0; i < sizeof sims / sizeof *sims; i++) {
        struct sim s = sims[i];

        run_in_child(start_rank, &s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_starts),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
