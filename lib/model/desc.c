/* desc.c - make and free the description of a model. */
#include "model/desc.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "model/family.h"

int meg_desc_add_block(struct meg_model_desc *d, const struct meg_block_type *type, const void *conf, size_t conf_size,
                       const char *norm, enum meg_drop_site site)
{
    d->block = meg_realloc_array(d->block, (size_t)d->nblocks + 1, sizeof *d->block);
    d->block[d->nblocks] = (struct meg_block){ .type = type, .conf = meg_new(conf_size), .norm = norm, .site = site };
    memcpy(d->block[d->nblocks].conf, conf, conf_size);
    return d->nblocks++;
}

int meg_desc_add_loss(struct meg_model_desc *d, const char *name, bool is_per_sequence)
{
    MEG_ASSERT_LT(d->nlosses, MEG_MAX_LOSSES);
    d->loss[d->nlosses] = (struct meg_loss){ name, is_per_sequence };
    return d->nlosses++;
}

void meg_desc_add_head(struct meg_model_desc *d, const struct meg_head_type *type, const void *conf, size_t conf_size,
                       const char *loss)
{
    d->head[d->nheads] =
        (struct meg_head){ type, meg_new(conf_size), meg_desc_add_loss(d, loss, type->is_per_sequence) };
    memcpy(d->head[d->nheads++].conf, conf, conf_size);
}

struct meg_stack *meg_desc_add_stack(struct meg_model_desc *d, const char *final_norm)
{
    struct meg_stack *s = &d->stack[d->nstacks];

    MEG_ASSERT_LT(d->nstacks, MEG_MAX_STACKS);
    d->nstacks++;
    *s = (struct meg_stack){ .final_norm = final_norm,
                             .begin = d->nlayers,
                             .end = d->nlayers,
                             .tokens = MEG_BATCH_TOKENS,
                             .position_ids = MEG_BATCH_POSITION_IDS,
                             .key_length = MEG_BATCH_KEY_LENGTH };
    return s;
}

void meg_desc_add_layers(struct meg_model_desc *d, const struct meg_block_list *pattern, int period, int64_t n,
                         const char *name)
{
    struct meg_stack *s = &d->stack[d->nstacks - 1];

    d->layer = meg_realloc_array(d->layer, (size_t)(d->nlayers + n), sizeof *d->layer);
    for (int64_t i = 0; i < n; i++) {
        struct meg_layer *l = &d->layer[d->nlayers++];

        snprintf(l->prefix, sizeof l->prefix, "%s.layers.%" PRId64 ".", name, s->end++ - s->begin);
        l->first = pattern[i % period].first;
        l->n = pattern[i % period].n;
        l->stack = d->nstacks - 1;
    }
}

/*
 * Tie the embeddings, which each stack uses before its first layer; a head may use the word embedding as well.  Tie the
 * relative bias of a stack, which all of its layers use.
 */
static void add_ties(struct meg_model_desc *d)
{
    const int64_t decoder = d->nstacks > 1 ? d->stack[1].begin + 1 : 0, head = d->nlayers + 1;
    struct meg_tie word = { "embedding", { { 0, 1 }, { decoder, decoder + 1 } } };

    d->word_tie = d->embedding_tie = -1;
    if (decoder) {
        d->embedding_tie = d->nties;
        d->tie[d->nties++] = (struct meg_tie){ "position-embedding", { word.use[0], word.use[1] } };
    }
    if (decoder || !d->is_untied) {
        word.use[2].begin = head;
        word.use[2].end = d->is_untied ? head : head + 1;
        d->word_tie = d->nties;
        d->tie[d->nties++] = word;
    }
    for (int k = 0; k < d->nstacks; k++) {
        struct meg_stack *s = &d->stack[k];

        if (!s->rel_bias)
            continue;
        s->rel_bias_tie = d->nties;
        d->tie[d->nties++] = (struct meg_tie){ "relative-bias", { { s->begin + 1, s->end + 1 } } };
    }
}

void meg_model_describe(struct meg_model_desc *d, const struct meg_model_conf *c)
{
    *d = (struct meg_model_desc){ 0 };
    meg_desc_set_common(d, c);
    meg_family_of(c)->describe(d, c);
    add_ties(d);
}

void meg_model_set_ties(struct meg_layout *l, const struct meg_model_conf *c)
{
    struct meg_model_desc d;

    meg_model_describe(&d, c);
    memcpy(l->tie, d.tie, sizeof l->tie);
    l->nties = d.nties;
    meg_model_desc_free(&d);
}

unsigned meg_desc_boundary(const struct meg_model_desc *d, int64_t layer)
{
    const unsigned residual = 1u << MEG_BOUNDARY_RESIDUAL, memory = 1u << MEG_BOUNDARY_MEMORY;

    if (d->nstacks == 1 || layer < d->stack[1].begin)
        return residual;
    return layer == d->stack[1].begin ? memory : residual | memory;
}

void meg_model_desc_free(struct meg_model_desc *d)
{
    for (int i = 0; i < d->nblocks; i++)
        free(d->block[i].conf);
    for (int i = 0; i < d->nheads; i++)
        free(d->head[i].conf);
    free(d->block);
    free(d->layer);
}
