/* megatron.c - open Megatron's per-rank checkpoints: convert tensor names to native ones and settings to options. */
#include "ckpt/megatron/megatron.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/pt.h"
#include "io/json.h"

enum { RANKS_MAX = 4096, STAGES_MAX = 999, CHUNKS_MAX = 64 };

/* clang-format off */
#define LAYER(layer, qkv) \
    { layer "self_attention.linear_qkv.weight", layer "self_attention.linear_qkv.weight", qkv }, \
    { layer "self_attention.linear_qkv.bias", layer "self_attention.linear_qkv.bias", qkv }
#define CROSS "decoder.layers.#.cross_attention.linear_kv."
#define REL_BIAS(stack) stack "_relative_pos_emb.relative_attention_bias.weight"
#define RENAMES(qkv) { \
    LAYER("decoder.layers.#.", qkv), LAYER("encoder.layers.#.", qkv), \
    { CROSS "weight", CROSS "weight", qkv }, { CROSS "bias", CROSS "bias", qkv }, \
    { REL_BIAS("encoder"), REL_BIAS("encoder"), CKPT_REPLICATED }, \
    { REL_BIAS("decoder"), REL_BIAS("decoder"), CKPT_REPLICATED }, { 0 } }
/* clang-format on */
/* Tables for checkpoint_version 0, 1, and 2 or later.  Since version 2, qkv and kv rows are in native order. */
static const struct ckpt_rename rename0[] = RENAMES(CKPT_QKV), rename1[] = RENAMES(CKPT_QKV_INTERLEAVED),
                                rename2[] = RENAMES(CKPT_SAME);
static const char *const ignored[] = { "rotary_pos_emb.inv_freq", NULL };
static const struct ckpt_format formats[] = { { .name = "megatron", .rename = rename0, .ignored = ignored },
                                              { .name = "megatron", .rename = rename1, .ignored = ignored },
                                              { .name = "megatron", .rename = rename2, .ignored = ignored } };

/* The tensors of one virtual stage in the file of one rank; without virtual stages, all tensors of the file. */
struct chunk {
    struct meg_st *st;
    int first, n; /* tensors [first, first + n) of st */
};

/* State while the files of all ranks are opened. */
struct reader {
    struct meg_ckpt *c;
    const char *first; /* path of the first rank's file, used in messages */
    const struct meg_py *args;
    int64_t tp, pp, vp;
    struct chunk *chunk; /* [pp][tp][vp] */
    enum meg_model_family family;
    bool has_core_names; /* tensors have the names of Megatron core */
};

/* ---- settings ---- */

/* Append the numbers of a tuple or list, such as 4095,0 or [1].  Return false if an element is no number. */
static bool numbers_as_text(struct meg_str *out, const struct meg_py *v)
{
    meg_str_printf(out, v->nv == 1 ? "[" : "");
    for (size_t i = 0; i < v->nv; i++) {
        const struct meg_py *x = v->v[i];

        if (x->type == MEG_PY_FLOAT)
            meg_str_printf(out, "%s%.17g", i ? "," : "", x->f);
        else if (x->type == MEG_PY_INT || x->type == MEG_PY_BOOL)
            meg_str_printf(out, "%s%" PRId64, i ? "," : "", x->i);
        else
            return false;
    }
    meg_str_printf(out, v->nv == 1 ? "]" : "");
    return v->nv > 0;
}

/*
 * Append a value of args as text for an option.  A bool is inverted if is_opposite is true.  Return false if an option
 * cannot have this value.
 */
static bool as_text(struct meg_str *out, const struct meg_py *v, bool is_opposite)
{
    switch (v->type) {
    case MEG_PY_BOOL: meg_str_printf(out, "%s", (v->i != 0) != is_opposite ? "yes" : "no"); break;
    case MEG_PY_INT: meg_str_printf(out, "%" PRId64, v->i); break;
    case MEG_PY_FLOAT: meg_str_printf(out, "%.17g", v->f); break;
    case MEG_PY_STR:
        for (size_t i = 0; i < v->n; i++)
            if (!isalnum((unsigned char)v->s[i]) && !memchr("_-.", v->s[i], 3))
                return false;
        meg_str_add(out, v->s, v->n);
        break;
    case MEG_PY_TUPLE:
    case MEG_PY_LIST: return numbers_as_text(out, v);
    default: return false;
    }
    return true;
}

static bool is_true(const struct meg_py *v)
{
    return v && v->type == MEG_PY_BOOL && v->i;
}

/* Append the model options in args, one per line. */
static int list_options(struct meg_str *out, const struct meg_py *args, enum meg_model_family family, const char *from,
                        struct meg_err *e)
{
    /* Each of these settings selects the tanh approximation of GELU.  Transformer Engine has no other GELU. */
    static const char *const tanh_gelu[] = { "openai_gelu", "use_te_activation_func",
                                             "use_transformer_engine_op_fuser" };
    const bool is_grouped = is_true(meg_py_attr(args, "group_query_attention"));
    char buf[64];

    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        const char *name = ckpt_arg_name(buf, row);
        const struct meg_py *v = name ? meg_py_attr(args, name) : NULL;

        if (name && family != MEG_FAMILY_BERT && strcmp(name, "bert_binary_head") == 0)
            continue; /* args contains this option, which only BERT uses, for every model */
        if (name && family == MEG_FAMILY_T5 && strcmp(name, "num_layers") == 0 &&
            meg_py_attr(args, "encoder_num_layers"))
            v = meg_py_attr(args, "encoder_num_layers");
        if (name && !v && strcmp(name, "norm_epsilon") == 0)
            v = meg_py_attr(args, "layernorm_epsilon");
        if (!v || v->type == MEG_PY_NONE || (strcmp(name, "num_query_groups") == 0 && !is_grouped))
            continue;
        meg_str_printf(out, "%s = ", row->name);
        if (!as_text(out, v, row->type == MEG_OPT_STORE_FALSE))
            return meg_fail(e, MEG_EFORMAT,
                            "%s: %s in args is not a number, a list of numbers, a bool or a string of letters, digits "
                            "and '_-.'",
                            from, name);
        meg_str_printf(out, "\n");
    }
    for (size_t i = 0; i < sizeof tanh_gelu / sizeof *tanh_gelu; i++)
        if (is_true(meg_py_attr(args, tanh_gelu[i])))
            meg_str_printf(out, "no-bias-gelu-fusion = no\n");
    if (family != MEG_FAMILY_GPT)
        meg_str_printf(out, "model = %s\n", family == MEG_FAMILY_BERT ? "bert" : "t5");
    return 0;
}

int ckpt_read_args(struct meg_model_conf *m, const struct meg_py *args, enum meg_model_family family, const char *from,
                   struct meg_err *e)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };
    struct meg_str text = { 0 };
    struct meg_err why;
    int r;

    meg_opt_defaults(groups);
    meg_str_add(&text, "", 0);
    r = list_options(&text, args, family, from, e);
    if (r == 0 && meg_opt_apply(groups, text.s, "args", &why) < 0)
        r = meg_fail(e, MEG_EFORMAT, "%s: %s", from, why.msg);
    meg_str_free(&text);
    return r;
}

int ckpt_set_options(struct meg_ckpt *c, const struct meg_py *args, enum meg_model_family family, const char *from,
                     struct meg_err *e)
{
    struct meg_model_conf m = { 0 };
    struct meg_tok_conf tok = { 0 };
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, &m },
                                           { "tokenizer", meg_tok_opts, &tok },
                                           { 0 } };
    struct meg_str dump = { 0 };
    int r = ckpt_read_args(&m, args, family, from, e);

    meg_opt_defaults(groups + 1);
    if (r == 0)
        meg_opt_dump(groups, &dump);
    c->options = dump.s;
    return r;
}

static int version_of(const struct meg_py *v)
{
    const double x = !v ? 0 : v->type == MEG_PY_FLOAT ? v->f : v->type == MEG_PY_INT ? (double)v->i : 0;

    return x >= 2 ? 2 : x >= 1 ? 1 : 0;
}

/*
 * Set *out to the number of ranks that args has under `name` or, if that is missing, under `older`.  The default is 1.
 * Returns MEG_EFORMAT if the number is not from 1 to max.
 */
static int read_count(const struct reader *rd, const char *name, const char *older, int64_t max, int64_t *out,
                      struct meg_err *e)
{
    *out = 1;
    if (!meg_py_int(meg_py_attr(rd->args, name), out) && older && meg_py_int(meg_py_attr(rd->args, older), out))
        name = older;
    if (*out >= 1 && *out <= max)
        return 0;
    return meg_fail(e, MEG_EFORMAT, "%s: %s in args is %" PRId64 ", expected 1 to %" PRId64, rd->first, name, *out,
                    max);
}

/* Return a length in tokens from args, or MEG_UNSET if it is missing or out of range. */
static int64_t read_length(const struct meg_py *args, const char *name)
{
    int64_t n;

    return meg_py_int(meg_py_attr(args, name), &n) && n >= 1 && n <= INT32_MAX ? n : MEG_UNSET;
}

void ckpt_set_run(struct meg_ckpt *c, const struct meg_py *args)
{
    int64_t true_size = 0;

    meg_py_int(meg_py_attr(args, "consumed_train_samples"), &c->consumed_samples);
    c->seq_length = read_length(args, "seq_length");
    c->decoder_seq_length = read_length(args, "decoder_seq_length");
    if (meg_py_int(meg_py_attr(args, "true_vocab_size"), &true_size) && true_size > 0)
        c->vocab_size = true_size;
}

static int read_settings(struct reader *rd, const struct meg_pt *pt, struct meg_err *e)
{
    const struct meg_py *root = pt->pickle.root;
    int r;

    rd->args = meg_py_get(root, "args");
    if (!rd->args || rd->args->type != MEG_PY_OBJECT || !rd->args->state)
        return meg_fail(e, MEG_EFORMAT, "%s: no Namespace named args; this is not a Megatron checkpoint", rd->first);
    if ((r = read_count(rd, "tensor_model_parallel_size", "model_parallel_size", RANKS_MAX, &rd->tp, e)) < 0 ||
        (r = read_count(rd, "pipeline_model_parallel_size", NULL, STAGES_MAX, &rd->pp, e)) < 0 ||
        (r = ckpt_check_args(rd->args, rd->first, e)) < 0)
        return r;
    rd->c->format = &formats[version_of(meg_py_get(root, "checkpoint_version"))];
    if (!meg_py_int(meg_py_get(root, "iteration"), &rd->c->source_iteration))
        meg_py_int(meg_py_get(root, "total_iters"), &rd->c->source_iteration);
    ckpt_set_run(rd->c, rd->args);
    rd->c->tp = rd->tp;
    return 0;
}

/* ---- names ---- */

/* Append the native name of a tensor of a layer or of a final norm.  `foreign` lacks the stack and the layer number. */
static void append_native(struct meg_str *out, const char *foreign, bool has_cross_attention)
{
    if (has_cross_attention && ckpt_replace_prefix(out, foreign, ckpt_legacy_decoder_names, true))
        return;
    if (!ckpt_replace_prefix(out, foreign, ckpt_te_names, true) &&
        !ckpt_replace_prefix(out, foreign, ckpt_legacy_names, true))
        meg_str_printf(out, "%s", foreign);
}

/*
 * Return the name of a tensor without the prefix "language_model.".  Before Megatron core, the dict language_model
 * contained most of the tensors of a file.
 */
static const char *skip_language_model(const char *foreign)
{
    return strncmp(foreign, "language_model.", 15) == 0 ? foreign + 15 : foreign;
}

/*
 * Return the native name of a tensor, malloc'ed.  Before Megatron core, the decoder of GPT was also called encoder or
 * transformer, and the encoder of BERT was also called transformer.  *layer is set to the layer number in foreign, or
 * -1; the layer number in the result is larger by first_layer[0] in an encoder, and by first_layer[1] in a decoder.
 */
static char *native_name(const char *foreign, enum meg_model_family family, const int64_t first_layer[2],
                         int64_t *layer, bool *is_decoder)
{
    static const char *const stack[] = { "decoder.", "encoder.", "transformer." };
    struct meg_str out = { 0 };
    size_t n = 0;

    *layer = -1;
    foreign = skip_language_model(foreign);
    if (strcmp(foreign, "word_embeddings_for_head.weight") == 0)
        return meg_strdup("output_layer.weight");
    if ((family == MEG_FAMILY_T5 && ckpt_replace_prefix(&out, foreign, ckpt_t5_copies, true)) ||
        (family != MEG_FAMILY_GPT && ckpt_replace_prefix(&out, foreign, ckpt_legacy_head_names, true)))
        return out.s;
    for (int i = 0; i < 3 && n == 0; i++)
        if (strncmp(foreign, stack[i], strlen(stack[i])) == 0)
            n = strlen(stack[i]);
    if (n == 0)
        return meg_strdup(foreign);
    *is_decoder = family == MEG_FAMILY_T5 ? foreign[0] == 'd' : family == MEG_FAMILY_GPT;
    meg_str_printf(&out, *is_decoder ? "decoder." : "encoder.");
    foreign += n;
    if (strncmp(foreign, "layers.", 7) == 0) {
        n = strspn(foreign + 7, "0123456789");
        if (n > 0 && n < 7 && foreign[7 + n] == '.') {
            *layer = strtol(foreign + 7, NULL, 10);
            meg_str_printf(&out, "layers.%" PRId64 ".", first_layer[*is_decoder] + *layer);
            foreign += 7 + n + 1;
        }
    }
    append_native(&out, foreign, family == MEG_FAMILY_T5 && *is_decoder);
    return out.s;
}

/* Return whether a tensor is internal state of Transformer Engine. */
static bool is_extra_state(const char *name)
{
    const size_t n = strlen(name), end = strlen("_extra_state");

    return n >= end && strcmp(name + n - end, "_extra_state") == 0;
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

/*
 * Rename the tensors of a chunk to their native names.  The chunk begins with layer first_layer[0] of the encoder and
 * layer first_layer[1] of the decoder.  Set nlayers to the numbers of encoder and decoder layers in the chunk.
 */
static void rename_chunk(struct chunk *k, enum meg_model_family family, const int64_t first_layer[2],
                         int64_t nlayers[2])
{
    struct meg_st_tensor *t = k->st->t + k->first;

    nlayers[0] = nlayers[1] = 0;
    for (int i = 0; i < k->n; i++) {
        bool is_decoder = false;
        int64_t layer;
        char *name = native_name(t[i].name, family, first_layer, &layer, &is_decoder);

        meg_st_own(k->st, name);
        t[i].name = name;
        if (layer + 1 > nlayers[is_decoder])
            nlayers[is_decoder] = layer + 1;
    }
}

/*
 * Return whether the qkv tensors have their Megatron core name, linear_qkv.  The rows of linear_qkv are in the order of
 * checkpoint_version 2, even if checkpoint_version is older or missing.  Megatron's fix_query_key_value_ordering
 * reorders only tensors with the older name, query_key_value.
 */
static bool has_core_names(const struct meg_st *st)
{
    for (int i = 0; i < st->n; i++)
        if (strstr(st->t[i].name, ".linear_qkv."))
            return true;
    return false;
}

/*
 * Return the family of the model whose tensors are in a file.  Only BERT has the transform of the language-model head,
 * or token types, and only T5 has cross-attention.
 */
static enum meg_model_family family_of(const struct meg_st *st)
{
    for (int i = 0; i < st->n; i++) {
        const char *name = skip_language_model(st->t[i].name);

        if (strcmp(name, "lm_head.dense.weight") == 0 || strcmp(name, "embedding.tokentype_embeddings.weight") == 0)
            return MEG_FAMILY_BERT;
        if (strstr(name, ".cross_attention.linear_q.") || strstr(name, ".inter_attention.query."))
            return MEG_FAMILY_T5;
    }
    return MEG_FAMILY_GPT;
}

/*
 * Determine from the tensor names the family of the model, and whether the names are Megatron core's.
 * Return MEG_EFORMAT for names of Megatron core with an option that Megatron core ignores.
 */
static int classify(struct reader *rd, struct meg_err *e)
{
    static const char post_norm[] = "apply_residual_connection_post_layernorm";

    for (int i = 0; i < rd->c->nfiles; i++) {
        if (rd->family == MEG_FAMILY_GPT)
            rd->family = family_of(rd->c->file[i]);
        rd->has_core_names = rd->has_core_names || has_core_names(rd->c->file[i]);
    }
    if (!rd->has_core_names || !is_true(meg_py_attr(rd->args, post_norm)))
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: %s is set in args, but Megatron core, whose tensor names the file has, ignores this setting; "
                    "remove it from args and save the file again",
                    rd->first, post_norm);
}

/*
 * Remove copies of tensors in the files of tensor-parallel rank t: T5 has its output layer and its position embedding
 * under two names, and its embeddings and relative biases in several stages.  Return MEG_EFORMAT if a copy differs from
 * the first tensor.
 */
static int drop_copies(const struct reader *rd, int64_t t, struct meg_err *e)
{
    struct ckpt_mapped_tensor *first = NULL;
    struct meg_strtab names = { 0 };
    int r = 0;

    for (int64_t i = t; r == 0 && i < rd->c->nfiles; i += rd->tp) {
        struct meg_st *st = rd->c->file[i];
        int kept = 0;

        for (int k = 0; k < st->n; k++) {
            const struct ckpt_mapped_tensor tensor = { st, &st->t[k] };
            const int64_t n = names.n, at = meg_strtab_add(&names, st->t[k].name, (int64_t)strlen(st->t[k].name));

            if (at == n) {
                first = meg_realloc_array(first, (size_t)n + 1, sizeof *first);
                first[n] = (struct ckpt_mapped_tensor){ st, &st->t[kept] };
                st->t[kept++] = st->t[k];
            } else if (r == 0 && !ckpt_is_equal(first[at], tensor)) {
                r = meg_fail(e, MEG_EFORMAT,
                             "%s: tensor %.200s differs from its copy in %s; the files are damaged or of different "
                             "saves: copy the checkpoint again",
                             st->path, tensor.t->name, first[at].st->path);
            }
        }
        st->n = kept;
    }
    meg_strtab_free(&names);
    free(first);
    return r;
}

/*
 * Rename all tensors to their native names, and sort the tensors of each file.  The layers of a stack are numbered
 * consecutively over chunk 0 of all pipeline stages, then over chunk 1 of all pipeline stages, and so on.
 */
static int rename_all(const struct reader *rd, struct meg_err *e)
{
    int64_t first[2] = { 0, 0 };
    int r = 0;

    if (rd->has_core_names)
        rd->c->format = &formats[2];
    for (int64_t v = 0; v < rd->vp; v++)
        for (int64_t p = 0; p < rd->pp; p++) {
            int64_t nlayers[2] = { 0, 0 };

            for (int64_t t = 0; t < rd->tp; t++)
                rename_chunk(&rd->chunk[(p * rd->tp + t) * rd->vp + v], rd->family, first, nlayers);
            first[0] += nlayers[0];
            first[1] += nlayers[1];
        }
    for (int64_t t = 0; r == 0 && rd->family == MEG_FAMILY_T5 && t < rd->tp; t++)
        r = drop_copies(rd, t, e);
    for (int64_t i = 0; r == 0 && i < rd->c->nfiles; i++)
        r = meg_st_sort(rd->c->file[i], e);
    return r;
}

/* ---- files ---- */

/*
 * Return the dict with the tensors of model chunk v, "model0", "model1", ..., or the dict "model" if vp is 0.  Return
 * NULL if the file has no such dict.
 */
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

/* Append the file of one rank and its tensors to c. */
static int add_rank(struct reader *rd, struct meg_pt *pt, struct chunk *chunk, struct meg_err *e)
{
    struct meg_ckpt *c = rd->c;
    struct meg_st *st = meg_new(sizeof *st);
    const int64_t nchunks = count_chunks(pt->pickle.root);
    int r = 0;

    st->path = meg_strdup(pt->path);
    c->file = meg_realloc_array(c->file, (size_t)c->nfiles + 1, sizeof *c->file);
    c->file[c->nfiles++] = st;
    for (int64_t v = 0; r == 0 && v < rd->vp; v++) {
        const struct meg_py *model = model_of(pt->pickle.root, v, nchunks);

        if (nchunks > CHUNKS_MAX)
            return meg_fail(e, MEG_EFORMAT, "%s: found %" PRId64 " model chunks, expected at most %d", pt->path,
                            nchunks, CHUNKS_MAX);
        if ((nchunks ? nchunks : 1) != rd->vp)
            return meg_fail(e, MEG_EFORMAT, "%s: found %" PRId64 " model chunks, expected %" PRId64 " as in %s",
                            pt->path, nchunks ? nchunks : 1, rd->vp, rd->first);
        if (!model)
            return meg_fail(e, MEG_EFORMAT, "%s: no dict named model; this is not a Megatron checkpoint", pt->path);
        chunk[v] = (struct chunk){ .st = st, .first = st->n };
        r = meg_pt_tensors(st, pt, model, e);
        chunk[v].n = st->n - chunk[v].first;
        drop_extra_state(&chunk[v]);
    }
    if (r == 0)
        meg_pt_move(st, pt);
    return r;
}

static int add_all(struct reader *rd, struct meg_err *e)
{
    int r = 0;

    for (int64_t p = 0; r == 0 && p < rd->pp; p++)
        for (int64_t t = 0; r == 0 && t < rd->tp; t++) {
            struct meg_pt *pt = NULL;
            char name[64];
            char *path = ckpt_path(rd->c->path, ckpt_rank_file(name, t, p, rd->pp));

            if ((r = meg_pt_open(&pt, path, e)) == 0)
                r = add_rank(rd, pt, &rd->chunk[(p * rd->tp + t) * rd->vp], e);
            else if (r == MEG_ENOENT)
                r = meg_fail(e, MEG_ENOENT,
                             "%s does not exist, but 'args' in %s has tensor-parallel size %" PRId64
                             " and pipeline-parallel size %" PRId64,
                             path, rd->first, rd->tp, rd->pp);
            meg_pt_close(pt);
            free(path);
        }
    return r;
}

int ckpt_find_vocab(struct meg_ckpt *c, const char *from, struct meg_err *e)
{
    static const char word[] = "embedding.word_embeddings.weight";
    struct meg_st *st;
    const struct meg_st_tensor *t = ckpt_find_tensor(c, 0, word, &st);

    if (!t || t->ndim != 2 || t->dim[0] > INT32_MAX)
        return meg_fail(e, MEG_EFORMAT, "%s: found no two-dimensional tensor %s of at most %d rows", from, word,
                        INT32_MAX);
    c->vocab_rows = t->dim[0] * c->tp;
    if (c->vocab_size > c->vocab_rows)
        return meg_fail(e, MEG_EFORMAT,
                        "%s: true_vocab_size in args is %" PRId64 ", expected at most %" PRId64
                        ", the number of rows of %s",
                        from, c->vocab_size, c->vocab_rows, word);
    if (!c->vocab_size)
        c->vocab_size = c->vocab_rows;
    return 0;
}

/*
 * Check sizes of the model.  The tensor-parallel size must divide the number of query groups and ffn_hidden_size.
 * Grouped-query attention is not supported if the qkv rows are in the order of checkpoint_version 0 or 1.
 */
static int check_tp_size(const struct reader *rd, struct meg_err *e)
{
    struct meg_model_conf m;
    int r = meg_ckpt_model_conf(rd->c, &m, e);

    if (r == 0 && m.attn.g % rd->tp)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: tensor-parallel size %" PRId64
                     " in args does not divide the number of query groups, %" PRId64,
                     rd->first, rd->tp, m.attn.g);
    if (r == 0 && m.mlp.f % rd->tp)
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: tensor-parallel size %" PRId64 " in args does not divide ffn_hidden_size %" PRId64, rd->first,
                     rd->tp, m.mlp.f);
    if (r == 0 && rd->c->format != &formats[2] && m.attn.g != m.attn.a)
        r = meg_fail(e, MEG_EFORMAT, "%s: grouped-query attention is not supported in checkpoint_version 0 and 1",
                     rd->first);
    return r;
}

int ckpt_open_megatron(struct meg_ckpt *c, struct meg_err *e)
{
    const int64_t stages = ckpt_path_exists(c->path, "mp_rank_00") ? 1 : 2;
    struct reader rd = { .c = c };
    struct meg_pt *pt = NULL;
    char name[64];
    char *path = ckpt_path(c->path, ckpt_rank_file(name, 0, 0, stages));
    int r;

    rd.first = path;
    if ((r = meg_pt_open(&pt, path, e)) < 0 || (r = read_settings(&rd, pt, e)) < 0)
        goto out;
    rd.vp = count_chunks(pt->pickle.root);
    rd.vp = rd.vp ? rd.vp : 1;
    if ((rd.pp > 1) != (stages > 1)) {
        r = meg_fail(e, MEG_EFORMAT,
                     "%s: args has pipeline-parallel size %" PRId64 ", but the name of the directory implies %s", path,
                     rd.pp, stages > 1 ? "a larger size, or expert parallelism" : "1");
        goto out;
    }
    rd.chunk = meg_new((size_t)(rd.pp * rd.tp * rd.vp) * sizeof *rd.chunk);
    if ((r = add_all(&rd, e)) < 0 || (r = classify(&rd, e)) < 0 ||
        (r = ckpt_set_options(c, rd.args, rd.family, path, e)) < 0 || (r = rename_all(&rd, e)) < 0 ||
        (r = ckpt_find_vocab(c, path, e)) < 0)
        goto out;
    r = check_tp_size(&rd, e);
out:
    free(rd.chunk);
    meg_pt_close(pt);
    free(path);
    return r;
}
