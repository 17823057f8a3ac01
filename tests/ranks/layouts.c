/*
 * Compare ten training steps (`sample`: four) under many parallel layouts with the same steps on one rank.  In f32,
 * losses, gradient norms and weights agree to 1e-5; in bf16, losses agree to 2e-2 and gradient norms to 5e-2.  The
 * bytes that each rank sends per step, for each group, and allocates, for each arena, equal the estimates of lib/plan.
 *
 *     mpirun -n 8 layouts sample|cover|full|placement DIR [I/N]
 *     layouts list N
 *
 * A cell is one value for each option below.  `full` runs all valid cells; with I/N, it runs part I of N random parts,
 * drawn with a fixed seed.  `cover` runs a selection of cells that contains every triple of values of a valid cell (a
 * covering array of strength 3, chosen greedily: Cohen et al. 1997).  `sample` runs the first SAMPLE cells of that
 * selection (choose_sample).  The world is split into groups of as many ranks as a cell requires; the groups run cells
 * concurrently.  The program trains on DIR/ids_text_document (tests/train.sh) or, for BERT and T5, on
 * DIR/text_text_sentence with DIR/vocab.txt (tests/bert.sh), prints TAP, and writes files to DIR.
 *
 * `placement` runs two steps of each cell of `cover`, or of part I of N of them, and compares nothing: in a debug
 * build, a wrong placement of a tensor ends the program (lib/placement).
 *
 * `list` prints the selection of `cover` for at most N ranks.  The line of a cell has the number of ranks, the name,
 * the options of meg-train that do not depend on the layout, and those of the layout, separated by tabs.  The options
 * have no paths.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "io/json.h"
#include "plan/usage_vs_plan.h"
#include "train/train.h"

enum { MAX_STEPS = 10, SAMPLE_STEPS = 4, SAMPLE = 16, TRIES = 40 };

static int steps = MAX_STEPS;
static bool checks_placement; /* the argument is `placement` */

/* ---- options and their values ----------------------------------------------------------------- */

struct value {
    const char *name, *args; /* name: part of the cell's name, may be empty; args: arguments of meg-train */
    int n; /* parallel size; SHAPE: maximum of TP size * all-to-all size; else: a code that is_valid compares */
};

enum { SHAPE, TP, PP, VP, CP, DP, SP, RECOMPUTE, SCHEDULE, ORDER, OPTIMIZER, OVERLAP, PRECISION, OPTIONS };

#define TINY "--num-layers 8 --hidden-size 32 --num-attention-heads 8 --seq-length 32 --max-position-embeddings 32 "
#define LLAMA                                                                                                          \
    "--group-query-attention --num-query-groups 4 --swiglu --normalization RMSNorm --position-embedding-type rope "    \
    "--disable-bias-linear --untie-embeddings-and-output-weights --ffn-hidden-size 64 "
/* With this seed, the bias of the binary head, which begins at 0, is not near 0 after ten steps. */
#define BERT "--model bert --seed 2 "
#define T5                                                                                                             \
    "--model t5 --num-layers 6 --decoder-num-layers 2 --decoder-seq-length 16 --vocab-extra-ids 30 "                   \
    "--position-embedding-type relative --relative-attention-num-buckets 8 --relative-attention-max-distance 20 "
#define UNEVEN "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers "
#define DESCRIBED " --pipeline-model-parallel-layout "
#define FULL "--recompute-granularity full --recompute-method "

static const struct value values[OPTIONS][9] = {
    [SHAPE] = { { "gpt", TINY, 8 },
                { "llama", TINY LLAMA, 4 }, /* n: key-value groups */
                { "qwen3-window", TINY LLAMA "--qk-layernorm --window-size 3,0 --window-attn-skip-freq 2 ", 4 },
                { "sinks",
                  TINY LLAMA "--softmax-type learnable --attn-logit-softcapping 2 --final-logit-softcapping 2 ", 4 },
                { "alibi", TINY LLAMA "--position-embedding-type alibi --softmax-type off-by-one ", 4 },
                { "bert", TINY BERT, 8 },
                { "t5", TINY T5, 8 } },
    [TP] = { { "", "", 1 },
             { "tp2", "--tensor-model-parallel-size 2", 2 },
             { "tp4", "--tensor-model-parallel-size 4", 4 },
             { "tp8", "--tensor-model-parallel-size 8", 8 } },
    [PP] = { { "", "", 1 },
             { "pp2", "--pipeline-model-parallel-size 2", 2 },
             { "pp4", "--pipeline-model-parallel-size 4", 4 },
             { "pp8", "--pipeline-model-parallel-size 8", 8 },
             { "pp2-uneven", UNEVEN "2", 2 },
             { "pp4-described", "--pipeline-model-parallel-size 4" DESCRIBED "E|t*5||t*3L", 4 },
             { "pp2vp3-described", "--pipeline-model-parallel-size 2" DESCRIBED "E|t*3||t*4|t|L", 2 },
             { "pp2-split1", "--pipeline-model-parallel-size 2 --pipeline-model-parallel-split-rank 1", 2 } },
    [VP] = { { "", "", 1 }, { "vp2", "--num-virtual-stages-per-pipeline-rank 2", 2 } },
    [CP] = { { "", "", 1 },
             { "ring2", "--context-parallel-size 2 --cp-comm-type p2p", 2 },
             { "gather2", "--context-parallel-size 2 --cp-comm-type all_gather", 2 },
             { "a2a-2", "--context-parallel-size 2 --cp-comm-type a2a", 2 },
             { "ring4", "--context-parallel-size 4 --cp-comm-type p2p", 4 },
             { "gather4", "--context-parallel-size 4 --cp-comm-type all_gather", 4 },
             { "a2a-4", "--context-parallel-size 4 --cp-comm-type a2a", 4 },
             { "a2a+p2p-4",
               "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2", 4 } },
    [DP] = { { "", "", 1 }, { "dp2", "", 2 }, { "dp4", "", 4 }, { "dp8", "", 8 } },
    [SP] = { { "", "", 0 }, { "sp", "--sequence-parallel", 1 } },
    [RECOMPUTE] = { { "", "", 0 },
                    { "selective", "--recompute-activations", 1 },
                    { "uniform3", FULL "uniform --recompute-num-layers 3", 2 },
                    { "block1", FULL "block --recompute-num-layers 1", 2 },
                    { "distribute-saved", FULL "uniform --recompute-num-layers 1 --distribute-saved-activations", 3 } },
    [SCHEDULE] = { { "", "", 0 }, { "zb-h1", "--pipeline-schedule zb-h1", 1 } },
    [ORDER] = { { "", "", 0 }, { "tp-pp-dp", "--use-tp-pp-dp-mapping", 1 } },
    [OPTIMIZER] = { { "", "", 0 },
                    { "zero1", "--use-distributed-optimizer", 1 },
                    { "zero1-2instances", "--use-distributed-optimizer --num-distributed-optimizer-instances 2", 2 },
                    { "zero2", "--zero-stage 2", 3 },
                    { "zero3", "--zero-stage 3", 3 } },
    [OVERLAP] = { { "", "", 0 },
                  { "overlap-grads", "--overlap-grad-reduce --ddp-bucket-size 9000", 1 },
                  { "overlap-all", "--overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 9000", 2 } },
    [PRECISION] = { { "", "", 0 }, { "bf16", "--bf16", 1 } },
};

struct cell {
    unsigned char v[OPTIONS];
};

static int count(int option)
{
    int n = 0;

    while (n < 8 && values[option][n].name)
        n++;
    return n;
}

static int value_of(const struct cell *c, int option)
{
    return values[option][c->v[option]].n;
}

static int ranks_of(const struct cell *c)
{
    return value_of(c, TP) * value_of(c, PP) * value_of(c, CP) * value_of(c, DP);
}

/* Return the all-to-all size of context parallelism, which divides the heads like tensor parallelism. */
static int a2a_size(const struct cell *c)
{
    const char *type = values[CP][c->v[CP]].name;

    return strstr(type, "a2a+p2p") ? 2 : strstr(type, "a2a") ? value_of(c, CP) : 1;
}

static bool is_bert(const struct cell *c)
{
    return strstr(values[SHAPE][c->v[SHAPE]].args, BERT);
}

static bool is_t5(const struct cell *c)
{
    return strstr(values[SHAPE][c->v[SHAPE]].args, T5);
}

/*
 * Indices of values of PP.  Those from FIRST_UNEVEN on divide the layers unequally; those from FIRST_DESCRIBED on use a
 * layout string or, for SPLIT, a split rank, with which the encoder and the decoder of T5 have one stage each.
 */
enum { FIRST_UNEVEN = 4, FIRST_DESCRIBED = 5, SPLIT = 7 };

/* Return the number of chunks per stage. */
static int chunks_of(const struct cell *c)
{
    return strstr(values[PP][c->v[PP]].name, "vp3") ? 3 : value_of(c, VP);
}

/* Return whether meg-train accepts the cell and it is not equivalent to a simpler cell. */
static bool is_valid(const struct cell *c, int world)
{
    const int tp = value_of(c, TP), pp = value_of(c, PP), recompute = value_of(c, RECOMPUTE);
    const int replicas = value_of(c, DP) * value_of(c, CP);
    int vp;

    /* All ranks try all cells: the fastest rules are first. */
    if ((value_of(c, OPTIMIZER) && replicas == 1) || (value_of(c, OPTIMIZER) == 2 && value_of(c, DP) == 1) ||
        (value_of(c, OPTIMIZER) == 3 && pp > 1) || (value_of(c, OVERLAP) && replicas == 1) ||
        (value_of(c, OVERLAP) == 2 && !value_of(c, OPTIMIZER)))
        return false;
    if ((value_of(c, ORDER) && (pp == 1 || replicas == 1)) || (value_of(c, SP) && tp == 1) ||
        (recompute == 3 && (tp == 1 || value_of(c, SP))) || ranks_of(c) > world)
        return false;
    vp = chunks_of(c);
    if (tp * a2a_size(c) > value_of(c, SHAPE) || pp * vp > 8 || (vp > 1 && pp == 1) ||
        (value_of(c, VP) > 1 && c->v[PP] >= FIRST_DESCRIBED) ||
        (value_of(c, SCHEDULE) && (pp == 1 || vp > 1 || recompute)))
        return false;
    if ((is_bert(c) || is_t5(c)) && value_of(c, CP) > 1)
        return false;
    return is_t5(c) ? vp == 1 && (c->v[PP] < FIRST_UNEVEN || c->v[PP] == SPLIT) : c->v[PP] != SPLIT;
}

static void name_of(const struct cell *c, char *out, size_t size)
{
    size_t n = 0;

    for (int i = 0; i < OPTIONS; i++) {
        const char *s = values[i][c->v[i]].name;

        if (*s)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? " " : "", s);
    }
}

/* ---- choice of cells ------------------------------------------------------------------------------- */

static bool next(struct cell *c)
{
    for (int i = 0; i < OPTIONS; i++) {
        if (++c->v[i] < count(i))
            return true;
        c->v[i] = 0;
    }
    return false;
}

static struct cell *all_cells(int world, int *n)
{
    struct cell c = { { 0 } }, *v = NULL;

    *n = 0;
    do
        if (is_valid(&c, world)) {
            v = meg_realloc_array(v, (size_t)*n + 1, sizeof *v);
            v[(*n)++] = c;
        }
    while (next(&c));
    return v;
}

/* Upper limit of the index of a triple: three options, and three values of 3 bits each. */
enum { TRIPLES = OPTIONS * OPTIONS * OPTIONS * 512 };

static int triple(const struct cell *c, int i, int j, int k)
{
    return (((i * OPTIONS + j) * OPTIONS + k) << 9) | c->v[i] << 6 | c->v[j] << 3 | c->v[k];
}

/* Count the triples of a cell that are not covered yet; with cover, mark them as covered. */
static int count_new(const struct cell *c, char *wanted, bool cover)
{
    int n = 0;

    for (int i = 0; i < OPTIONS; i++)
        for (int j = i + 1; j < OPTIONS; j++)
            for (int k = j + 1; k < OPTIONS; k++) {
                char *w = &wanted[triple(c, i, j, k)];

                n += *w;
                if (cover)
                    *w = 0;
            }
    return n;
}

static int random_below(unsigned *seed, int n)
{
    *seed = *seed * 1103515245u + 12345u;
    return (int)((*seed >> 8) % (unsigned)n);
}

/*
 * Choose cells until all triples are covered.  Each choice considers the first cell that covers a new triple and TRIES
 * random cells, and chooses the one that covers the most new triples.  Set *n to the number of cells; the caller frees
 * the array.
 */
static struct cell *cover(const struct cell *all, int nall, int *n)
{
    char *wanted = meg_new(TRIPLES);
    struct cell *v = NULL;
    unsigned seed = 1;

    for (int a = 0; a < nall; a++)
        for (int i = 0; i < OPTIONS; i++)
            for (int j = i + 1; j < OPTIONS; j++)
                for (int k = j + 1; k < OPTIONS; k++)
                    wanted[triple(&all[a], i, j, k)] = 1;
    *n = 0;
    for (int first = 0;;) {
        int best, best_count;

        while (first < nall && count_new(&all[first], wanted, false) == 0)
            first++;
        if (first == nall)
            break;
        best = first;
        best_count = count_new(&all[first], wanted, false);
        for (int t = 0; t < TRIES; t++) {
            const int a = random_below(&seed, nall), new = count_new(&all[a], wanted, false);

            if (new > best_count) {
                best_count = new;
                best = a;
            }
        }
        count_new(&all[best], wanted, true);
        v = meg_realloc_array(v, (size_t)*n + 1, sizeof *v);
        v[(*n)++] = all[best];
    }
    free(wanted);
    return v;
}

/*
 * Choose the first SAMPLE cells, and return their number.  If none of them is an f32 cell with a certain unequal
 * division of the layers, overwrite the last of them that has an equal division and was not yet overwritten.  The new
 * cell is the first later f32 cell with the unequal division.
 */
static int choose_sample(struct cell *cell, int n)
{
    for (int pp = FIRST_UNEVEN, last = SAMPLE; pp < count(PP); pp++) {
        int i = 0;

        while (i < n && (cell[i].v[PP] != pp || value_of(&cell[i], PRECISION)))
            i++;
        if (i < SAMPLE || i == n)
            continue;
        do
            last--;
        while (cell[last].v[PP] >= FIRST_UNEVEN);
        cell[last] = cell[i];
    }
    return n < SAMPLE ? n : SAMPLE;
}

/*
 * Shuffle the cells with a fixed seed, and divide them into `parts` parts.  Return a copy of part i, counted from 1,
 * and set *n to its number of cells.
 */
static struct cell *part_of(struct cell *all, int nall, int i, int parts, int *n)
{
    const int begin = (int)((int64_t)nall * (i - 1) / parts), end = (int)((int64_t)nall * i / parts);
    unsigned seed = 1;

    for (int k = nall - 1; k > 0; k--) {
        struct cell *other = &all[random_below(&seed, k + 1)], c = *other;

        *other = all[k];
        all[k] = c;
    }
    *n = end - begin;
    return memcpy(meg_new((size_t)*n * sizeof *all), all + begin, (size_t)*n * sizeof *all);
}

/* ---- a run ------------------------------------------------------------------------------------- */

static const char *dir;

static bool has_sentences(const struct cell *c)
{
    return is_bert(c) || is_t5(c);
}

/* Append the options of a cell that do not depend on its layout, except paths. */
static void add_training(struct meg_str *line, const struct cell *c)
{
    meg_str_printf(line,
                   "--micro-batch-size 1 --global-batch-size 16 --train-iters %d --eval-iters 0 --lr 1e-3 "
                   "--lr-warmup-iters %d --split 100,0,0 --log-interval 1 --no-save-optim --tokenizer-type %s %s %s",
                   steps, checks_placement ? 0 : 2,
                   has_sentences(c) ? "BertWordPieceLowerCase" : "NullTokenizer --vocab-size 100",
                   values[SHAPE][c->v[SHAPE]].args, values[PRECISION][c->v[PRECISION]].args);
}

/* Append the options of the layout of a cell. */
static void add_layout(struct meg_str *line, const struct cell *c)
{
    for (int i = SHAPE + 1; i < PRECISION; i++)
        if (*values[i][c->v[i]].args)
            meg_str_printf(line, " %s", values[i][c->v[i]].args);
}

static void run(const struct cell *c, const char *name, struct meg_comm *ranks, struct meg_usage_vs_plan *usage)
{
    struct meg_train_job *job = meg_new(sizeof *job);
    struct meg_optgroup groups[MEG_TRAIN_OPTION_GROUPS];
    struct meg_str line = { 0 };
    char *argv[120], *save;
    struct meg_err e;
    int argc = 0;

    meg_str_printf(&line, "layouts --log-json %s/%s.json ", dir, name);
    if (!checks_placement)
        meg_str_printf(&line, "--save %s/%s ", dir, name);
    if (has_sentences(c))
        meg_str_printf(&line, "--vocab-file %s/vocab.txt ", dir);
    meg_str_printf(&line, "--data-path %s/%s ", dir, has_sentences(c) ? "text_text_sentence" : "ids_text_document");
    add_training(&line, c);
    add_layout(&line, c);
    for (char *word = strtok_r(line.s, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    meg_train_option_groups(groups, job);
    meg_opt_defaults(groups);
    job->usage = usage;
    if (meg_opt_parse_args(groups, argc, argv, &e) < 0 || meg_train(job, groups, ranks, &e) < 0)
        meg_die_err(&e);
    meg_str_free(&line);
    free(job);
}

/* ---- results of a run ------------------------------------------------------------------------------- */

struct outcome {
    int nlosses;
    double loss[MAX_STEPS], grad_norm[MAX_STEPS];
    struct meg_params params;
    float *w;
};

static void read_losses(struct outcome *o, const char *name)
{
    char path[512], text[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    if (!(f = fopen(path, "r")))
        meg_die(MEG_EFAIL, "%s: does not exist", path);
    while (fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL), *loss = json_object_get(line, "lm_loss");

        if (json_is_number(loss) && o->nlosses < steps) {
            o->grad_norm[o->nlosses] = json_number_value(json_object_get(line, "grad_norm"));
            o->loss[o->nlosses++] = json_number_value(loss);
        }
        json_decref(line);
    }
    fclose(f);
}

static void read_weights(struct outcome *o, const char *name)
{
    struct meg_ckpt_shard slot = { .dtype = MEG_DTYPE_F32 };
    struct meg_ckpt *c = NULL;
    struct meg_model_conf m;
    struct meg_err e;
    char path[512];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (meg_ckpt_open(&c, path, MEG_UNSET, &e) < 0 || meg_ckpt_model_conf(c, &m, &e) < 0)
        meg_die_err(&e);
    meg_model_params(&o->params, &m, &meg_mesh_one);
    o->w = meg_new((size_t)o->params.flat_numel * sizeof *o->w);
    slot.data = o->w;
    if (meg_ckpt_load(c, &o->params, &meg_mesh_one, &slot, 1, &e) < 0)
        meg_die_err(&e);
    meg_ckpt_close(c);
}

static void outcome_free(struct outcome *o)
{
    free(o->w);
    meg_params_free(&o->params);
}

/* Return the larger value; NaN is larger than all numbers. */
static double worse(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* Return diff / size, or 0 if diff is 0, even if size is 0. */
static double relative(double diff, double size)
{
    return diff == 0 ? 0 : diff / size;
}

/* Return the largest relative difference of a number that each step reports. */
static double steps_diff(const double *a, const double *b)
{
    double most = 0;

    for (int i = 0; i < steps; i++)
        most = worse(most, relative(fabs(a[i] - b[i]), fabs(b[i])));
    return most;
}

/*
 * Return whether element i is a key bias.  Softmax is invariant to key biases, so their gradients are rounding errors.
 */
static bool is_key_bias(const struct meg_param *row, int64_t i, int groups)
{
    const int64_t group = row->numel / groups, d = 4, r = group / d - 2;

    if (strstr(row->name, "linear_kv.bias"))
        return i % group < d;
    return strstr(row->name, "linear_qkv.bias") && i % group >= r * d && i % group < (r + 1) * d;
}

/* Return the largest |w - v| / |v| over all tensors.  Key biases are ignored if they are finite. */
static double weights_diff(const struct outcome *a, const struct outcome *b, int groups)
{
    double most = 0;

    for (int k = 0; k < b->params.n; k++) {
        const struct meg_param *row = &b->params.row[k];
        const float *v = b->w + row->offset, *w = a->w + row->offset;
        double diff = 0, norm = 0;

        for (int64_t i = 0; i < row->numel; i++) {
            if (isfinite(w[i]) && is_key_bias(row, i, groups))
                continue;
            diff += ((double)w[i] - v[i]) * ((double)w[i] - v[i]);
            norm += (double)v[i] * v[i];
        }
        most = worse(most, relative(sqrt(diff), sqrt(norm)));
    }
    return most;
}

/* ---- usage of ranks ------------------------------------------------------------------------ */

/*
 * An arena or group whose bytes differ from the estimate; index is 0 if there is none.  Members are f64, so that
 * collectives can exchange them.
 */
struct mismatch {
    double index, rank, counted, planned;
};

static struct mismatch find_mismatch(const struct meg_usage_vs_plan *a, int rank)
{
    for (int i = 0; i < MEG_COST_MEM_ARENAS; i++)
        if (a->memory[i] != a->memory_planned[i])
            return (struct mismatch){ 1 + i, rank, a->memory[i], a->memory_planned[i] };
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        if (!(fabs(a->comm[i] - a->comm_planned[i]) < MEG_USAGE_VS_PLAN_ROUNDING))
            return (struct mismatch){ 1 + MEG_COST_MEM_ARENAS + i, rank, a->comm[i], a->comm_planned[i] };
    return (struct mismatch){ 0 };
}

/* Return the mismatch of the first rank that has one; if no rank has one, the index of the result is 0. */
static struct mismatch first_mismatch(struct meg_comm *ranks, const struct meg_usage_vs_plan *mine)
{
    struct mismatch *all = meg_new((size_t)ranks->size * sizeof *all), s;
    int i = 0;

    all[ranks->rank] = find_mismatch(mine, ranks->rank);
    meg_host_all_gather(ranks, all, &all[ranks->rank], sizeof s / sizeof(double), MEG_DTYPE_F64);
    while (i + 1 < ranks->size && all[i].index == 0)
        i++;
    s = all[i];
    free(all);
    return s;
}

static void print_mismatch(FILE *f, const struct mismatch *s)
{
    const int i = (int)s->index - 1;

    fprintf(f, "#   rank %.0f: %s%s: %.1f bytes, estimated %.1f\n", s->rank,
            i < MEG_COST_MEM_ARENAS ? "allocated in " : "sent per step in ",
            i < MEG_COST_MEM_ARENAS ? meg_cost_memory_name[i] : meg_cost_group_name[i - MEG_COST_MEM_ARENAS],
            s->counted, s->planned);
}

/* ---- all cells ---------------------------------------------------------------------------------- */

/* All members are f64, so that an all-reduce can combine the results of all groups. */
struct result {
    double loss, grad_norm, weights; /* relative differences from one rank */
    struct mismatch mismatch;
};

static struct outcome reference[8]; /* results on one rank, for each value of SHAPE */

static void make_references(struct meg_comm *world)
{
    for (int s = 0; s < count(SHAPE); s++) {
        const char *name = values[SHAPE][s].name;
        struct cell c = { { 0 } };

        c.v[SHAPE] = (unsigned char)s;
        if (world->rank == 0)
            run(&c, name, &meg_comm_self, NULL);
        meg_host_barrier(world);
        read_losses(&reference[s], name);
        read_weights(&reference[s], name);
    }
}

/* Compare two outcomes.  Unless both have all steps, the differences of loss and gradient norm are infinite. */
static void compare(struct result *r, const struct outcome *a, const struct outcome *b, int groups)
{
    const bool is_complete = a->nlosses == steps && b->nlosses == steps;

    r->loss = is_complete ? steps_diff(a->loss, b->loss) : INFINITY;
    r->grad_norm = is_complete ? steps_diff(a->grad_norm, b->grad_norm) : INFINITY;
    r->weights = weights_diff(a, b, groups);
}

/*
 * Run the cells of `size` ranks, world->size / size of them concurrently.  The first rank of each group sets the
 * elements of result [n] for the cells that the group runs.
 */
static void run_cells(struct meg_comm *world, const struct cell *cell, int n, int size, struct result *result)
{
    const int groups = world->size / size, own_group = world->rank / size;
    struct meg_comm *ranks = meg_comm_split(world, own_group, "cell");
    int nrun = 0;

    for (int i = 0; i < n; i++) {
        struct outcome o = { 0 };
        struct meg_usage_vs_plan usage;
        struct mismatch mismatch;
        char name[40];

        if (ranks_of(&cell[i]) != size || nrun++ % groups != own_group || own_group >= groups)
            continue;
        snprintf(name, sizeof name, "cell-%d", i);
        run(&cell[i], name, ranks, &usage);
        mismatch = first_mismatch(ranks, &usage);
        if (ranks->rank > 0 || checks_placement)
            continue;
        read_losses(&o, name);
        read_weights(&o, name);
        compare(&result[i], &o, &reference[cell[i].v[SHAPE]], value_of(&cell[i], SHAPE));
        result[i].mismatch = mismatch;
        outcome_free(&o);
    }
    meg_comm_close(ranks);
    meg_host_barrier(world);
}

/*
 * For each value of each option, print the number of its cells and their largest differences.  Only the line of bf16
 * includes cells in bf16.
 */
static void print_table(FILE *f, const struct cell *cell, int n, const struct result *result)
{
    fprintf(f, "# %-12s %6s %12s %14s %12s\n", "", "cells", "loss", "gradient norm", "weights");
    for (int i = 0; i < OPTIONS; i++)
        for (int v = 0; v < count(i); v++) {
            double loss = 0, grad_norm = 0, weights = 0;
            int cells = 0;

            for (int k = 0; k < n; k++)
                if (cell[k].v[i] == v && (i == PRECISION || !value_of(&cell[k], PRECISION))) {
                    cells++;
                    loss = worse(loss, result[k].loss);
                    grad_norm = worse(grad_norm, result[k].grad_norm);
                    weights = worse(weights, result[k].weights);
                }
            if (cells && *values[i][v].name)
                fprintf(f, "# %-12s %6d %12.1e %14.1e %12.1e\n", values[i][v].name, cells, loss, grad_norm, weights);
        }
}

static int print(FILE *f, const struct cell *cell, int n, const struct result *result)
{
    int failed = 0, mismatches = 0;

    for (int i = 0; i < n; i++) {
        const struct result *r = &result[i];
        const bool is_near = value_of(&cell[i], PRECISION)
                                 ? r->loss <= 2e-2 && r->grad_norm <= 5e-2 && isfinite(r->weights)
                                 : r->loss <= 1e-5 && r->grad_norm <= 1e-5 && r->weights <= 1e-5;
        const bool is_ok = is_near && r->mismatch.index == 0;
        char name[200];

        name_of(&cell[i], name, sizeof name);
        fprintf(f, "%sok %d - %s: losses within %.1e, gradient norms within %.1e, weights within %.1e of one rank\n",
                is_ok ? "" : "not ", i + 1, name, r->loss, r->grad_norm, r->weights);
        if (r->mismatch.index != 0)
            print_mismatch(f, &r->mismatch);
        failed += !is_ok;
        mismatches += r->mismatch.index != 0;
    }
    print_table(f, cell, n, result);
    fprintf(f, "# bytes sent per step by group, and allocated by arena, equal the estimates in %d of %d cells\n",
            n - mismatches, n);
    fprintf(f, "1..%d\n", n);
    return failed;
}

static int print_names(FILE *f, const struct cell *cell, int n)
{
    for (int i = 0; i < n; i++) {
        char name[200];

        name_of(&cell[i], name, sizeof name);
        fprintf(f, "ok %d - %s: placements are right\n", i + 1, name);
    }
    fprintf(f, "1..%d\n", n);
    return 0;
}

/* Print a line per cell: the number of ranks, the name, training options and layout options, separated by tabs. */
static void list(const struct cell *cell, int n)
{
    for (int i = 0; i < n; i++) {
        struct meg_str line = { 0 };
        char name[200];

        name_of(&cell[i], name, sizeof name);
        meg_str_printf(&line, "%d\t%s\t", ranks_of(&cell[i]), name);
        add_training(&line, &cell[i]);
        meg_str_printf(&line, "\t");
        add_layout(&line, &cell[i]);
        puts(line.s);
        meg_str_free(&line);
    }
}

int main(int argc, char **argv)
{
    struct meg_comm_world ranks;
    struct cell *all, *cell;
    struct result *result;
    struct meg_err e;
    int nall, n, part = 1, parts = 1, failed = 0;
    FILE *tap;

    if (argc == 3 && strcmp(argv[1], "list") == 0) {
        all = all_cells(atoi(argv[2]), &nall);
        cell = cover(all, nall, &n);
        list(cell, n);
        free(cell);
        free(all);
        return 0;
    }
    if (argc < 3 || argc > 4 || (argc == 4 && sscanf(argv[3], "%d/%d", &part, &parts) != 2) || part < 1 ||
        part > parts || meg_comm_open(&ranks, &e) < 0)
        meg_die(MEG_EUSAGE, "mpirun -n N layouts sample|cover|full|placement DIR [I/N], or layouts list N");
    dir = argv[2];
    tap = fdopen(dup(1), "w");
    if (!tap || !freopen("/dev/null", "w", stdout)) /* discard the output of meg_train */
        meg_die(MEG_EFAIL, "cannot duplicate standard output");
    meg_log_set_rank(ranks.world->rank);
    meg_log_set_level(MEG_LOG_WARN);

    all = all_cells(ranks.world->size, &nall);
    checks_placement = strcmp(argv[1], "placement") == 0;
    cell = strcmp(argv[1], "full") == 0 ? part_of(all, nall, part, parts, &n) : cover(all, nall, &n);
    if (strcmp(argv[1], "sample") == 0) {
        n = choose_sample(cell, n);
        steps = SAMPLE_STEPS;
    }
    if (checks_placement) {
        struct cell *selected = part_of(cell, n, part, parts, &n);

        free(cell);
        cell = selected;
        steps = 2;
    }
    result = meg_new((size_t)n * sizeof *result);
    if (!checks_placement)
        make_references(ranks.world);
    for (int size = 1; size <= ranks.world->size; size *= 2)
        run_cells(ranks.world, cell, n, size, result);
    meg_host_all_reduce(ranks.world, result, n * (int64_t)(sizeof *result / sizeof(double)), MEG_DTYPE_F64,
                        MEG_REDUCE_SUM);
    if (ranks.world->rank == 0) {
        fprintf(tap, "# %d of %d cells\n", n, nall);
        failed = checks_placement ? print_names(tap, cell, n) : print(tap, cell, n, result);
    }
    fclose(tap);
    free(result);
    free(cell);
    free(all);
    meg_comm_close(ranks.world);
    return failed > 0;
}
