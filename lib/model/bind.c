/* bind.c - the parameters of a model: its parameter table, and the weights of its parts. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/internal.h"

static void begin_part(struct meg_binder *b, int64_t layer_group, const char *prefix)
{
    const size_t n = strlen(prefix);

    MEG_ASSERT_LT(n, sizeof b->prefix);
    memcpy(b->prefix, prefix, n + 1);
    b->layer_group = (int)layer_group;
}

/* Set the tie of a row of the parameter table.  Do nothing if row is NULL. */
static void set_tie(struct meg_param *row, int tie)
{
    if (row)
        row->tie = tie;
}

/* Declare a norm; without a name, there is none. */
static void bind_norm(struct meg_binder *b, struct meg_norm_weights *norm, const struct meg_model_desc *d,
                      const char *name)
{
    norm->type = d->norm;
    norm->has_weight = d->norm_has_weight;
    norm->has_bias = d->norm_has_bias;
    norm->eps = (float)d->norm_eps;
    if (name)
        meg_bind_norm(b, norm, name, d->h);
}

void model_bind_embed(struct meg_binder *b, struct meg_embed *l, const struct meg_model_desc *d)
{
    const struct meg_matrix_shape words = { 0, d->v, d->h, 0, 1, d->std, NULL };
    const struct meg_matrix_shape positions = { 0, d->positions, d->h, -1, 1, d->std, NULL };
    const struct meg_matrix_shape types = { 0, d->token_types, d->h, -1, 1, d->std, NULL };
    struct meg_param *word;

    begin_part(b, 0, "embedding.");
    word = meg_bind_matrix(b, &l->word, &l->dword, "word_embeddings.weight", &words);
    if (word) {
        word->is_vocab = word->is_decoupled = 1;
        word->tie = d->word_tie;
    }
    if (d->positions)
        set_tie(meg_bind_matrix(b, &l->pos, &l->dpos, "position_embeddings.weight", &positions), d->embedding_tie);
    l->first_position = d->first_position;
    if (d->has_embed_norm)
        bind_norm(b, &l->norm, d, "word_embeddings.norm");
    if (d->token_types)
        set_tie(meg_bind_matrix(b, &l->types, &l->dtypes, "tokentype_embeddings.weight", &types), d->embedding_tie);
}

void model_bind_rel_bias(struct meg_binder *b, struct meg_rel_bias *l, const struct meg_model_desc *d, int k)
{
    const struct meg_stack *s = &d->stack[k];
    const struct meg_matrix_shape shape = { 0, d->rel_bias_buckets, d->rel_bias_heads, 1, 1, d->std, NULL };

    if (!s->rel_bias)
        return;
    begin_part(b, 0, "");
    set_tie(meg_bind_matrix(b, &l->w, &l->dw, s->rel_bias, &shape), s->rel_bias_tie);
    l->max_distance = d->rel_bias_max_distance;
    l->is_bidirectional = s->is_bidirectional;
}

void model_layer_init(struct model_layer *l, const struct meg_model_desc *d, int64_t index)
{
    *l = (struct model_layer){ .desc = &d->layer[index], .index = index };
    l->block = meg_new((size_t)l->desc->n * sizeof *l->block);
    for (int i = 0; i < l->desc->n; i++) {
        l->block[i].desc = &d->block[l->desc->first + i];
        l->block[i].weights = meg_new(l->block[i].desc->type->weights_size);
    }
}

void model_layer_free(struct model_layer *l)
{
    for (int i = 0; l->block && i < l->desc->n; i++)
        free(l->block[i].weights);
    free(l->block);
}

void model_bind_layer(struct meg_binder *b, struct model_layer *l, const struct meg_model_desc *d,
                      const struct meg_block_env *env)
{
    begin_part(b, 1 + l->index, l->desc->prefix);
    for (int i = 0; i < l->desc->n; i++) {
        struct model_block *block = &l->block[i];

        MEG_ASSERT(!block->desc->is_parallel || (i > 0 && !block->desc->residual_from_norm));
        MEG_ASSERT(!block->desc->residual_from_norm || block->desc->norm);
        bind_norm(b, &block->norm, d, block->desc->norm);
        block->desc->type->bind(b, block->weights, block->desc->conf, env);
        bind_norm(b, &block->post_norm, d, block->desc->post_norm);
    }
}

void model_bind_final_norm(struct meg_binder *b, struct meg_norm_weights *norm, const struct meg_model_desc *d, int k)
{
    begin_part(b, k == d->nstacks - 1 ? d->nlayers + 1 : d->stack[k].end, "");
    bind_norm(b, norm, d, d->stack[k].final_norm);
}

void model_bind_heads(struct meg_binder *b, void *const *weights, const struct meg_model_desc *d,
                      const struct meg_block_env *env)
{
    begin_part(b, d->nlayers + 1, "");
    for (int i = 0; i < d->nheads; i++)
        d->head[i].type->bind(b, weights[i], d->head[i].conf, env);
}

void model_heads_init(void **weights, const struct meg_model_desc *d)
{
    for (int i = 0; i < d->nheads; i++)
        weights[i] = meg_new(d->head[i].type->weights_size);
}

void model_heads_free(void **weights)
{
    for (int i = 0; i < MEG_MAX_LOSSES; i++)
        free(weights[i]);
}

void meg_model_params(struct meg_params *p, const struct meg_model_conf *c, const struct meg_mesh *mesh)
{
    struct meg_model_desc d;
    struct meg_binder b = { .step = MEG_BIND_ROWS, .params = p };
    const struct meg_block_env env = { .tp = 1 };
    struct meg_embed embed;
    struct meg_rel_bias rel_bias;
    struct meg_norm_weights norm;
    void *head[MEG_MAX_LOSSES] = { NULL };

    *p = (struct meg_params){ 0 };
    meg_model_describe(&d, c);
    b.init = d.init;
    model_bind_embed(&b, &embed, &d);
    for (int k = 0; k < d.nstacks; k++)
        model_bind_rel_bias(&b, &rel_bias, &d, k);
    for (int k = 0; k < d.nstacks; k++) {
        for (int64_t i = d.stack[k].begin; i < d.stack[k].end; i++) {
            struct model_layer l;

            model_layer_init(&l, &d, i);
            model_bind_layer(&b, &l, &d, &env);
            model_layer_free(&l);
        }
        model_bind_final_norm(&b, &norm, &d, k);
    }
    model_heads_init(head, &d);
    model_bind_heads(&b, head, &d, &env);
    model_heads_free(head);
    for (int i = 0; i < p->n && d.is_trained; i++)
        p->row[i].is_frozen |= !d.is_trained(&p->row[i]);
    meg_model_desc_free(&d);
    meg_params_shard(p, mesh);
}
