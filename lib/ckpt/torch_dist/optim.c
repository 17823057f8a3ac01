/*
 * optim.c - the optimizer's state in a distributed checkpoint.
 *
 * Megatron stores a state of each parameter under the name optimizer.state.STATE.PARAMETER, in the shape of the
 * parameter or flattened.  With dp_reshardable, it stores flat buffers instead.  The order of the parameters in a
 * buffer is the reverse of the order in which the model registers them; each begins at a multiple of 64 elements.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/torch_dist/chunks.h"
#include "ckpt/torch_dist/torch_dist.h"

#define REMEDY                                                                                                         \
    "; save the checkpoint in Megatron with --dist-ckpt-optim-fully-reshardable, or use --no-load-optim or --finetune"
#define BUFFER "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_("

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The states of Megatron and of a native checkpoint. */
static const char *const states[][2] = { { "param", MEG_CKPT_MAIN_PARAMS },
                                         { MEG_CKPT_MAIN_PARAMS, MEG_CKPT_MAIN_PARAMS },
                                         { "exp_avg", "exp_avg" },
                                         { "exp_avg_sq", "exp_avg_sq" },
                                         { "momentum_buffer", "momentum_buffer" } };
enum { NSTATES = sizeof states / sizeof *states };

/* Return the parameter's name in the name of a state, and set *state to the native name of the state; else NULL. */
static const char *split_name(const char *name, const char **state)
{
    if (!ckpt_is_optim_name(name))
        return NULL;
    name += strlen(CKPT_OPTIM_PREFIX);
    for (int i = 0; i < NSTATES; i++) {
        const size_t n = strlen(states[i][0]);

        if (strncmp(name, states[i][0], n) == 0 && name[n] == '.') {
            *state = states[i][1];
            return dist_skip_wrappers(name + n + 1);
        }
    }
    return NULL;
}

/* ---- the layout ---- */

static void __attribute__((format(printf, 2, 3))) refuse(struct ckpt_dist *d, const char *fmt, ...)
{
    struct meg_str text = { 0 };
    char reason[300];

    MEG_FORMAT_ARGS(reason, fmt);
    meg_str_printf(&text, "%s: the optimizer's state cannot be read: %s%s", d->dir, reason, REMEDY);
    free(d->optim_refusal);
    d->optim_refusal = text.s;
}

/* Refuse flat buffers unless args gives the order of their parameters. */
static void check_buffers(struct ckpt_dist *d, const struct dist_common *k)
{
    static const char *const sizes[] = { "tensor_model_parallel_size", "pipeline_model_parallel_size" };
    const struct meg_py *impl = meg_py_attr(k->args, "transformer_impl");
    int64_t n;

    for (int i = 0; i < 2; i++)
        if (!meg_py_int(meg_py_attr(k->args, sizes[i]), &n) || n != 1)
            refuse(d, "it is in the layout dp_reshardable, and %s in args is not 1", sizes[i]);
    if (!meg_py_is_str(impl, "local"))
        refuse(d, "it is in the layout dp_reshardable, and transformer_impl in args is not local");
    for (int64_t i = 0; i < d->metadata.tensor_names.n; i++)
        if (begins_with(d->metadata.tensor[i].name, "optimizer.distributed.") &&
            !begins_with(d->metadata.tensor[i].name, BUFFER))
            refuse(d, "it has several buffers: %.150s", d->metadata.tensor[i].name);
}

void dist_find_optim(struct ckpt_dist *d, const struct dist_common *k)
{
    const struct meg_py *type = meg_py_get(k->optimizer, "param_state_sharding_type");
    const char *state, *by_name = NULL, *buffer = NULL, *chained = NULL, *other = NULL;

    for (int64_t i = 0; i < d->metadata.tensor_names.n; i++) {
        const char *name = d->metadata.tensor[i].name;

        if (split_name(name, &state))
            by_name = name;
        else if (begins_with(name, "optimizer.distributed."))
            buffer = name;
        else if (begins_with(name, "chained_"))
            chained = other = name;
        else if (begins_with(name, "optimizer."))
            other = name;
    }
    d->optim = buffer ? DIST_OPTIM_BUFFERS : by_name ? DIST_OPTIM_BY_NAME : DIST_OPTIM_NONE;
    if (buffer)
        check_buffers(d, k);
    if ((by_name || buffer) && (chained || (by_name && buffer)))
        refuse(d, "it has tensors of two layouts: %.100s and %.100s", by_name ? by_name : buffer,
               chained ? chained : buffer);
    if (d->optim != DIST_OPTIM_NONE || (!other && !type))
        return;
    d->optim = DIST_OPTIM_BUFFERS;
    if (other)
        refuse(d, "expected tensors optimizer.state.exp_avg.PARAMETER, found %.150s", other);
    else
        refuse(d, "it is in the layout %.*s", type->type == MEG_PY_STR && type->n < 60 ? (int)type->n : 0, type->s);
}

int ckpt_check_dist_optim(const struct ckpt_dist *d, struct meg_err *e)
{
    return d->optim_refusal ? meg_fail(e, MEG_EFORMAT, "%s", d->optim_refusal) : 0;
}

/* Return the flat tensor of a state (a name of Megatron) in a bucket, or NULL. */
static const struct dist_tensor *find_bucket(const struct dist_metadata *m, int64_t bucket, const char *state)
{
    char end[64];

    snprintf(end, sizeof end, ").bucket_idx_%" PRId64 ".%s", bucket, state);
    for (int64_t i = 0; i < m->tensor_names.n; i++) {
        const char *name = m->tensor[i].name;
        const size_t n = strlen(name);

        if (begins_with(name, BUFFER) && n > strlen(end) && strcmp(name + n - strlen(end), end) == 0)
            return &m->tensor[i];
    }
    return NULL;
}

bool ckpt_has_dist_optim_state(const struct ckpt_dist *d, const char *name)
{
    const char *state;

    if (d->optim_refusal)
        return false;
    for (int i = 0; i < NSTATES && d->optim == DIST_OPTIM_BUFFERS; i++)
        if (strcmp(states[i][1], name) == 0 && find_bucket(&d->metadata, 0, states[i][0]))
            return true;
    for (int64_t i = 0; i < d->metadata.tensor_names.n; i++)
        if (split_name(d->metadata.tensor[i].name, &state) && strcmp(state, name) == 0)
            return true;
    return false;
}

/* ---- states by name ---- */

static int compose_by_name(struct dist_composer *x)
{
    const struct dist_metadata *m = &x->d->metadata;
    const char *state;
    int r = 0;

    for (int64_t i = 0; r == 0 && i < m->tensor_names.n; i++) {
        const char *name = split_name(m->tensor[i].name, &state);

        if (name)
            r = dist_compose(x, &m->tensor[i], name, state);
    }
    return r;
}

/* ---- flat buffers ---- */

/* Append to list [*n] the row of a parameter, unless the model does not have it. */
static void add_row(const struct meg_param **list, int *n, const struct meg_params *p, const char *name)
{
    const struct meg_param *row = meg_params_find(p, name);

    if (row && *n < p->n)
        list[(*n)++] = row;
}

/* List the parameters of a GPT in the order in which Megatron's local modules register them.  Return their number. */
static int list_registered(const struct meg_param **list, const struct meg_params *p)
{
    static const char *const layer[] = { "input_layernorm",
                                         "self_attention.core_attention.softmax_offset",
                                         "self_attention.linear_proj",
                                         "self_attention.linear_qkv",
                                         "self_attention.q_layernorm",
                                         "self_attention.k_layernorm",
                                         "pre_mlp_layernorm",
                                         "mlp.linear_fc1",
                                         "mlp.linear_fc2" };
    static const char *const type[] = { "", ".weight", ".bias" };
    char name[CKPT_NAME_CHARS];
    int n = 0, before = -1;

    add_row(list, &n, p, "embedding.word_embeddings.weight");
    add_row(list, &n, p, "embedding.position_embeddings.weight");
    for (int i = 0; n != before; i++) {
        before = n;
        for (size_t k = 0; k < 3 * sizeof layer / sizeof *layer; k++) {
            snprintf(name, sizeof name, "decoder.layers.%d.%s%s", i, layer[k / 3], type[k % 3]);
            add_row(list, &n, p, name);
        }
    }
    add_row(list, &n, p, "decoder.final_layernorm.weight");
    add_row(list, &n, p, "decoder.final_layernorm.bias");
    add_row(list, &n, p, "output_layer.weight");
    return n;
}

/* A position in the buckets of one state. */
struct position {
    const char *state; /* Megatron's name */
    int64_t bucket, at;
};

static int bad_order(const struct dist_composer *x, const char *name)
{
    return meg_fail(x->e, MEG_EFORMAT,
                    "%s: the buffers of the optimizer's state (dp_reshardable) do not have parameter %s where the "
                    "order of the local modules of Megatron core has it" REMEDY,
                    x->st->path, name);
}

/* Add one parameter from the buffer, whose parameters end at *pos; they end where chunks do.  Update *pos. */
static int compose_param(struct dist_composer *x, struct position *pos, const struct meg_param *row, int64_t vocab_rows,
                         const char *state)
{
    const int64_t dim[2] = { row->is_vocab ? vocab_rows : row->dim[0], row->ndim > 1 ? row->dim[1] : 1 };
    const struct dist_tensor *t = find_bucket(&x->d->metadata, pos->bucket, pos->state);
    int64_t begin = (pos->at + MEG_PARAM_ALIGN - 1) / MEG_PARAM_ALIGN * MEG_PARAM_ALIGN, end;
    char name[CKPT_NAME_CHARS];

    if (t && pos->at == t->dim[0]) {
        t = find_bucket(&x->d->metadata, ++pos->bucket, pos->state);
        begin = 0;
    }
    if (!t || !t->dtype || t->ndim != 1 || begin > t->dim[0] || dim[0] > (t->dim[0] - begin) / dim[1])
        return bad_order(x, row->name);
    end = begin + dim[0] * dim[1];
    if (!dist_find_chunk(t, &begin) || (end < t->dim[0] && !dist_find_chunk(t, &end)))
        return bad_order(x, row->name);
    pos->at = end;
    return dist_compose_range(x, t, begin, ckpt_optim_name(name, state, row->name), dim, row->ndim);
}

static int compose_buffers(struct dist_composer *x, const struct meg_params *p, int64_t vocab_rows)
{
    const struct meg_param **list = meg_new((size_t)p->n * sizeof *list + 1);
    const int n = list_registered(list, p);
    int r = n == p->n ? 0 : bad_order(x, p->row[0].name);

    for (int s = 0; s < NSTATES; s++) {
        struct position pos = { .state = states[s][0] };

        if (!find_bucket(&x->d->metadata, 0, pos.state))
            continue;
        for (int i = n; r == 0 && i-- > 0;)
            r = compose_param(x, &pos, list[i], vocab_rows, states[s][1]);
        if (r == 0 && (pos.at != find_bucket(&x->d->metadata, pos.bucket, pos.state)->dim[0] ||
                       find_bucket(&x->d->metadata, pos.bucket + 1, pos.state)))
            r = bad_order(x, list[0]->name);
    }
    free(list);
    return r;
}

int dist_compose_optim(struct dist_composer *x, const struct meg_params *p, int64_t vocab_rows)
{
    return x->d->optim == DIST_OPTIM_BUFFERS ? compose_buffers(x, p, vocab_rows) : compose_by_name(x);
}
