/* Checkpoints of Megatron's ranks, read: their names become ours, their settings options. */
#include "ckpt/megatron/megatron.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/megatron/pt.h"
#include "io/json.h"

enum { RANKS_MAX = 4096, STAGES_MAX = 999, CHUNKS_MAX = 64 };

/* clang-format off */
#define LAYER "decoder.layers.#."
#define TABLE(qkv) { \
    { LAYER "self_attention.linear_qkv.weight", LAYER "self_attention.linear_qkv.weight", qkv }, \
    { LAYER "self_attention.linear_qkv.bias", LAYER "self_attention.linear_qkv.bias", qkv }, \
    { LAYER "mlp.linear_fc1.weight", LAYER "mlp.linear_fc1.weight", CKPT_GATE_UP }, \
    { LAYER "mlp.linear_fc1.bias", LAYER "mlp.linear_fc1.bias", CKPT_GATE_UP }, \
    { 0 } }
/* clang-format on */
/* By checkpoint_version: 0, 1, and 2 and later, whose rows lie as ours. */
static const struct ckpt_rename rename0[] = TABLE(CKPT_QKV), rename1[] = TABLE(CKPT_QKV_INTERLEAVED),
                                rename2[] = TABLE(CKPT_SAME);
static const char *const ignored[] = { "rotary_pos_emb.inv_freq", NULL };
static const struct ckpt_format formats[] = { { "megatron", rename0, NULL, ignored },
                                              { "megatron", rename1, NULL, ignored },
                                              { "megatron", rename2, NULL, ignored } };

/* The tensors of a stage, or of one of its parts where stages are interleaved. */
struct chunk {
    struct meg_st *st;
    int first, n; /* among those of st */
};

struct ranks {
    struct meg_ckpt *c;
    const char *first; /* path of the first rank's file, in messages */
    const struct meg_py *args;
    int64_t tp, pp, vp;
    struct chunk *chunk; /* [pp][tp][vp] */
};

/* ---- settings ---- */

/* A value of args as an option's text; false: it is none. */
static bool as_text(struct meg_str *out, const struct meg_py *v, bool is_opposite)
{
    switch (v->type) {
    case MEG_PY_BOOL: meg_str_printf(out, "%s", (v->i != 0) != is_opposite ? "yes" : "no"); break;
    case MEG_PY_INT: meg_str_printf(out, "%" PRId64, v->i); break;
    case MEG_PY_FLOAT: meg_str_printf(out, "%.17g", v->f); break;
    case MEG_PY_STR:
        for (size_t i = 0; i < v->n; i++)
            if (!isalnum((unsigned char)v->s[i]) && v->s[i] != '_')
                return false;
        meg_str_add(out, v->s, v->n);
        break;
    default: return false;
    }
    return true;
}

static bool is_true(const struct meg_py *v)
{
    return v && v->type == MEG_PY_BOOL && v->i;
}

/* The options in args, a line each. */
static int collect_options(const struct ranks *k, struct meg_str *out, struct meg_err *e)
{
    /* GELU is the tanh form with these, too: Transformer Engine has no other. */
    static const char *const tanh_gelu[] = { "openai_gelu", "use_te_activation_func",
                                             "use_transformer_engine_op_fuser" };
    const bool is_grouped = is_true(meg_py_attr(k->args, "group_query_attention"));
    char buf[64];

    for (const struct meg_opt *row = meg_gpt_opts; row->name; row++) {
        const char *name = ckpt_arg_name(buf, row);
        const struct meg_py *v = name ? meg_py_attr(k->args, name) : NULL;

        if (name && !v && !strcmp(name, "norm_epsilon"))
            v = meg_py_attr(k->args, "layernorm_epsilon");
        if (!v || v->type == MEG_PY_NONE || (!strcmp(name, "num_query_groups") && !is_grouped))
            continue;
        meg_str_printf(out, "%s = ", row->name);
        if (!as_text(out, v, row->type == MEG_OPT_STORE_FALSE))
            return meg_fail(e, MEG_EFORMAT, "%s: %s in args is no number, word or bool", k->first, name);
        meg_str_printf(out, "\n");
    }
    for (size_t i = 0; i < sizeof tanh_gelu / sizeof *tanh_gelu; i++)
        if (is_true(meg_py_attr(k->args, tanh_gelu[i])))
            meg_str_printf(out, "no-bias-gelu-fusion = no\n");
    return 0;
}

static int read_options(const struct ranks *k, struct meg_err *e)
{
    struct meg_gpt_conf m = { 0 };
    struct meg_tok_conf tok = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_gpt_opts, &m }, { "tokenizer", meg_tok_opts, &tok }, { 0 } };
    struct meg_str text = { 0 }, dump = { 0 };
    struct meg_err why;
    int r;

    meg_opt_defaults(groups);
    if ((r = ckpt_check_args(k->args, k->first, e)) < 0 || (r = collect_options(k, &text, e)) < 0)
        goto out;
    if (meg_opt_apply(groups, text.s ? text.s : "", "args", &why) < 0) {
        r = meg_fail(e, MEG_EFORMAT, "%s: %s", k->first, why.msg);
        goto out;
    }
    meg_opt_dump(groups, &dump);
    k->c->options = dump.s;
out:
    meg_str_free(&text);
    return r;
}

static int version_of(const struct meg_py *v)
{
    const double x = !v ? 0 : v->type == MEG_PY_FLOAT ? v->f : v->type == MEG_PY_INT ? (double)v->i : 0;

    return x >= 2 ? 2 : x >= 1 ? 1 : 0;
}

/* A count of ranks in args, under its name or an older one. */
static int read_count(const struct ranks *k, const char *name, const char *older, int64_t max, int64_t *out,
                      struct meg_err *e)
{
    *out = 1;
    if (!meg_py_int(meg_py_attr(k->args, name), out) && older)
        meg_py_int(meg_py_attr(k->args, older), out);
    if (*out >= 1 && *out <= max)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: %s in args is %" PRId64 ", expected 1 to %" PRId64, k->first, name, *out, max);
}

static int read_settings(struct ranks *k, const struct meg_pt *pt, struct meg_err *e)
{
    const struct meg_py *root = pt->pickle.root;
    int64_t true_size = 0;
    int r;

    k->args = meg_py_get(root, "args");
    if (!k->args || k->args->type != MEG_PY_OBJECT || !k->args->state)
        return meg_fail(e, MEG_EFORMAT, "%s: no Namespace called args in it: not a checkpoint of Megatron", k->first);
    if ((r = read_count(k, "tensor_model_parallel_size", "model_parallel_size", RANKS_MAX, &k->tp, e)) < 0 ||
        (r = read_count(k, "pipeline_model_parallel_size", NULL, STAGES_MAX, &k->pp, e)) < 0 ||
        (r = read_options(k, e)) < 0)
        return r;
    k->c->format = &formats[version_of(meg_py_get(root, "checkpoint_version"))];
    if (!meg_py_int(meg_py_get(root, "iteration"), &k->c->source_iteration))
        meg_py_int(meg_py_get(root, "total_iters"), &k->c->source_iteration);
    meg_py_int(meg_py_attr(k->args, "consumed_train_samples"), &k->c->consumed_samples);
    if (meg_py_int(meg_py_attr(k->args, "seq_length"), &k->c->seq_length) &&
        (k->c->seq_length < 1 || k->c->seq_length > INT32_MAX))
        k->c->seq_length = MEG_UNSET;
    if (meg_py_int(meg_py_attr(k->args, "true_vocab_size"), &true_size) && true_size > 0)
        k->c->vocab_size = true_size;
    k->c->tp = k->tp;
    return 0;
}

/* ---- names ---- */

/* Append name, its beginning respelled by the first row of the table that fits. */
static bool respell(struct meg_str *out, const char *name, const struct ckpt_prefix_map *table)
{
    for (; table->theirs; table++)
        if (!strncmp(name, table->theirs, strlen(table->theirs))) {
            meg_str_printf(out, "%s%s", table->ours, name + strlen(table->theirs));
            return true;
        }
    return false;
}

/* Our name of a tensor, malloc'ed; the number of its layer grows by first_layer. */
static char *native_name(const char *theirs, int64_t first_layer, int64_t *layer)
{
    static const char *const stack[] = { "decoder.", "encoder.", "transformer." };
    struct meg_str out = { 0 };
    size_t n = 0;

    *layer = -1;
    if (!strncmp(theirs, "language_model.", 15))
        theirs += 15;
    if (!strcmp(theirs, "word_embeddings_for_head.weight"))
        return meg_strdup("output_layer.weight");
    for (int i = 0; i < 3 && n == 0; i++)
        if (!strncmp(theirs, stack[i], strlen(stack[i])))
            n = strlen(stack[i]);
    if (n == 0)
        return meg_strdup(theirs);
    meg_str_printf(&out, "decoder.");
    theirs += n;
    if (!strncmp(theirs, "layers.", 7)) {
        n = strspn(theirs + 7, "0123456789");
        if (n > 0 && n < 7 && theirs[7 + n] == '.') {
            *layer = strtol(theirs + 7, NULL, 10);
            meg_str_printf(&out, "layers.%" PRId64 ".", first_layer + *layer);
            theirs += 7 + n + 1;
        }
    }
    if (!respell(&out, theirs, ckpt_te_names) && !respell(&out, theirs, ckpt_legacy_names))
        meg_str_printf(&out, "%s", theirs);
    return out.s;
}

/* Transformer Engine keeps state of its own beside the weights. */
static bool is_extra_state(const char *name)
{
    const size_t n = strlen(name), end = strlen("_extra_state");

    return n >= end && !strcmp(name + n - end, "_extra_state");
}

static void drop_extra_state(struct chunk *k)
{
    struct meg_st_tensor *t = k->st->t + k->first;
    int kept = 0;

    for (int i = 0; i < k->n; i++)
        if (!is_extra_state(t[i].name))
            t[kept++] = t[i];
    k->n = kept;
    k->st->n = k->first + kept;
}

/* Returns the number of its layers. */
static int64_t rename_chunk(struct chunk *k, int64_t first_layer)
{
    struct meg_st_tensor *t = k->st->t + k->first;
    int64_t layer, n = 0;

    for (int i = 0; i < k->n; i++) {
        char *name = native_name(t[i].name, first_layer, &layer);

        meg_st_own(k->st, name);
        t[i].name = name;
        n = layer + 1 > n ? layer + 1 : n;
    }
    return n;
}

/*
 * Whether queries, keys and values have the name of Megatron's core.  Their rows are in the order of version 2
 * whatever checkpoint_version is, or where it is missing: Megatron's fix_query_key_value_ordering reorders only
 * what is called query_key_value.
 */
static bool has_core_names(const struct meg_st *st)
{
    for (int i = 0; i < st->n; i++)
        if (strstr(st->t[i].name, ".linear_qkv."))
            return true;
    return false;
}

/* Layers are numbered in the order of parts, then of stages. */
static int rename_all(const struct ranks *k, struct meg_err *e)
{
    int64_t first = 0;
    int r = 0;

    for (int i = 0; i < k->c->nfiles; i++)
        if (has_core_names(k->c->file[i]))
            k->c->format = &formats[2];
    for (int64_t v = 0; v < k->vp; v++)
        for (int64_t p = 0; p < k->pp; p++) {
            int64_t layers = 0;

            for (int64_t t = 0; t < k->tp; t++)
                layers = rename_chunk(&k->chunk[(p * k->tp + t) * k->vp + v], first);
            first += layers;
        }
    for (int64_t i = 0; r == 0 && i < k->c->nfiles; i++)
        r = meg_st_sort(k->c->file[i], e);
    return r;
}

/* ---- files ---- */

/* "model", or with parts model0, model1, ...; NULL: there is none. */
static const struct meg_py *model_of(const struct meg_py *root, int64_t v, int64_t vp)
{
    char name[32];

    snprintf(name, sizeof name, "model%" PRId64, v);
    return meg_py_get(root, vp ? name : "model");
}

static int64_t count_chunks(const struct meg_py *root)
{
    int64_t n = 0;

    if (model_of(root, 0, 0))
        return 0;
    while (n <= CHUNKS_MAX && model_of(root, n, 1))
        n++;
    return n;
}

/* The tensors of one rank's file, which becomes the next of c. */
static int add_rank(struct ranks *k, struct meg_pt *pt, struct chunk *chunk, struct meg_err *e)
{
    struct meg_ckpt *c = k->c;
    struct meg_st *st = meg_new(sizeof *st);
    const int64_t nparts = count_chunks(pt->pickle.root);
    int r = 0;

    st->path = meg_strdup(pt->path);
    c->file = meg_realloc_array(c->file, (size_t)c->nfiles + 1, sizeof *c->file);
    c->file[c->nfiles++] = st;
    for (int64_t v = 0; r == 0 && v < k->vp; v++) {
        const struct meg_py *model = model_of(pt->pickle.root, v, nparts);

        if (!model || nparts > CHUNKS_MAX || (nparts ? nparts : 1) != k->vp)
            return meg_fail(e, MEG_EFORMAT,
                            "%s: %" PRId64 " parts of a model in it, in the first rank's file %" PRId64 ", at most %d",
                            pt->path, model && !nparts ? 1 : nparts, k->vp, CHUNKS_MAX);
        chunk[v] = (struct chunk){ .st = st, .first = st->n };
        r = meg_pt_tensors(st, pt, model, e);
        chunk[v].n = st->n - chunk[v].first;
        drop_extra_state(&chunk[v]);
    }
    if (r == 0)
        meg_pt_move(st, pt);
    return r;
}

static int add_all(struct ranks *k, struct meg_err *e)
{
    int r = 0;

    for (int64_t p = 0; r == 0 && p < k->pp; p++)
        for (int64_t t = 0; r == 0 && t < k->tp; t++) {
            struct meg_pt *pt = NULL;
            char name[64];
            char *path = ckpt_path(k->c->path, ckpt_rank_file(name, t, p, k->pp));

            if ((r = meg_pt_open(&pt, path, e)) == 0)
                r = add_rank(k, pt, &k->chunk[(p * k->tp + t) * k->vp], e);
            else if (r == MEG_ENOENT)
                r = meg_fail(e, MEG_ENOENT,
                             "%s is not there; args of %s say %" PRId64 " tensor and %" PRId64 " pipeline ranks", path,
                             k->first, k->tp, k->pp);
            meg_pt_close(pt);
            free(path);
        }
    return r;
}

/* The rows of the word embedding, padding counted, and those that are the vocabulary. */
static int find_vocab(struct ranks *k, struct meg_err *e)
{
    static const char word[] = "embedding.word_embeddings.weight";
    const struct meg_st *st;
    const struct meg_st_tensor *t = ckpt_find_tensor(k->c, 0, word, &st);

    if (!t || t->ndim != 2 || t->dim[0] > INT32_MAX)
        return meg_fail(e, MEG_EFORMAT, "%s: no table %s in it", k->first, word);
    k->c->vocab_rows = t->dim[0] * k->tp;
    if (k->c->vocab_size > k->c->vocab_rows)
        return meg_fail(e, MEG_EFORMAT, "%s: true_vocab_size in args is %" PRId64 ", %s has %" PRId64 " rows", k->first,
                        k->c->vocab_size, word, k->c->vocab_rows);
    if (!k->c->vocab_size)
        k->c->vocab_size = k->c->vocab_rows;
    return 0;
}

/* Heads and such are cut whole. */
static int check_cut(const struct ranks *k, struct meg_err *e)
{
    struct meg_gpt_conf m;
    int r = meg_ckpt_gpt_conf(k->c, &m, e);

    if (r == 0 && (m.num_query_groups % k->tp || m.ffn_hidden_size % k->tp))
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: %" PRId64 " tensor ranks do not divide %" PRId64 " query groups and %" PRId64
                     " channels of the MLP",
                     k->first, k->tp, m.num_query_groups, m.ffn_hidden_size);
    if (r == 0 && k->c->format != &formats[2] && m.num_query_groups != m.num_attention_heads)
        r = meg_fail(e, MEG_EFORMAT, "%s: query groups in a checkpoint_version before 2", k->first);
    return r;
}

int ckpt_open_megatron(struct meg_ckpt *c, struct meg_err *e)
{
    const int64_t stages = ckpt_path_exists(c->path, "mp_rank_00") ? 1 : 2;
    struct ranks k = { .c = c };
    struct meg_pt *pt = NULL;
    char name[64];
    char *path = ckpt_path(c->path, ckpt_rank_file(name, 0, 0, stages));
    int r;

    k.first = path;
    if ((r = meg_pt_open(&pt, path, e)) < 0 || (r = read_settings(&k, pt, e)) < 0)
        goto out;
    k.vp = count_chunks(pt->pickle.root);
    k.vp = k.vp ? k.vp : 1;
    if ((k.pp > 1) != (stages > 1)) {
        r = meg_fail(e, MEG_EFORMAT, "%s: args say %" PRId64 " pipeline ranks, the folder's name %s", path, k.pp,
                     stages > 1 ? "more, or experts" : "one");
        goto out;
    }
    k.chunk = meg_new((size_t)(k.pp * k.tp * k.vp) * sizeof *k.chunk);
    if ((r = add_all(&k, e)) < 0 || (r = rename_all(&k, e)) < 0 || (r = find_vocab(&k, e)) < 0)
        goto out;
    r = check_cut(&k, e);
out:
    free(k.chunk);
    meg_pt_close(pt);
    free(path);
    return r;
}
