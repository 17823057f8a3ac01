/*
 * count_model.c - run a micro-batch through each part of a model with operations and collectives that count
 * (count_ops.h): the embedding, each distinct layer, and the heads.  A layer is run as the only layer of a pipeline
 * stage, so that the layers of any family can be counted.  The counts of the embedding are those
 * of the first stage with one layer, minus this layer's, because T5 has no stages without layers.  The counts of
 * the heads are computed from the last stage in the same way.
 */
#include "plan/count_model.h"
#include <stdlib.h>
#include "base/mem.h"

/* The state of counting: the model, its counts, and the simulated rank, the first rank of each of its groups. */
struct counting {
    const struct meg_cost_model *m;
    struct meg_cost_counts *counts;
    struct cost_counter counter;
    struct cost_comm tp, cp, a2a, ring, ep, etp;
    struct meg_device device;
};

static void init_rank(struct counting *r, const struct meg_cost_model *m, struct meg_cost_counts *counts)
{
    const struct meg_layout *l = &m->layout;
    const int64_t a2a_size = l->a2a_size ? l->a2a_size : 1;

    r->m = m;
    r->counts = counts;
    r->counter = (struct cost_counter){ .hw = m->hw, .threads = m->threads, .stores_scores = m->stores_scores };
    r->tp = cost_comm_make(MEG_COST_GROUP_TP, m->hw, 1, l->tp);
    r->cp = cost_comm_make(MEG_COST_GROUP_CP, m->hw, l->tp, l->cp);
    r->a2a = cost_comm_make(MEG_COST_GROUP_CP, m->hw, l->tp, a2a_size);
    r->ring = cost_comm_make(MEG_COST_GROUP_CP, m->hw, l->tp * a2a_size, l->cp / a2a_size);
    r->ep = cost_comm_make(MEG_COST_GROUP_EP, m->hw, l->etp, l->ep);
    r->etp = cost_comm_make(MEG_COST_GROUP_ETP, m->hw, 1, l->etp);
    r->device = (struct meg_device){ .op = &cost_count_ops, .compute = (struct meg_stream *)(void *)&r->counter };
}

/* Return a micro-batch of the largest size, with all arrays that a rank can have.  Their addresses must not be read. */
static struct meg_batch largest_batch(const struct meg_cost_model *m)
{
    struct meg_batch x = { .s = m->run.s / m->layout.cp, .s_enc = m->run.s_enc / m->layout.cp, .b = m->run.b };

    for (int f = 0; f < MEG_BATCH_NUM_FIELDS; f++)
        if (f != MEG_BATCH_DOC_START || m->has_doc_start)
            *meg_batch_array(&x, f) = cost_count_ops.alloc(0);
    return x;
}

/*
 * Return the runtime configuration with which a part is counted.  Recomputation of complete layers is off, because the
 * number of recomputed layers depends on the stage; cost_count_chunk adds their forward passes.
 */
static struct meg_model_run run_of_part(const struct meg_cost_model *m, bool defers_wgrad)
{
    struct meg_model_run run = m->run;

    run.positions = 1; /* the values of the rotary tables do not matter */
    run.defers_wgrad = defers_wgrad;
    if (run.recompute != MEG_RECOMPUTE_SELECTIVE)
        run.recompute = MEG_RECOMPUTE_NONE;
    run.distribute_saved_activations = run.shards_params = run.shards_grads = false;
    return run;
}

/* Allocate the tensors that are sent between two pipeline stages. */
static void alloc_boundary(void *p[MEG_BOUNDARY_TENSORS], const struct meg_model *g)
{
    struct meg_boundary_tensor tensor[MEG_BOUNDARY_TENSORS];
    const int n = meg_model_boundary(g, tensor);

    for (int i = 0; i < n; i++)
        p[i] = g->op->alloc((size_t)tensor[i].n * meg_dtype_size(tensor[i].dtype));
}

/* Count the forward pass and, in training, the backward pass of a model with one chunk. */
static void run_micro_batch(struct cost_part *part, struct meg_model *g, struct counting *r)
{
    const struct meg_loss_factors factors = { { 0 }, { 0 } };
    const struct meg_batch x = largest_batch(r->m);
    void *boundary[4][MEG_BOUNDARY_TENSORS]; /* input and output, and their gradients */

    for (int i = 0; i < 4; i++)
        alloc_boundary(boundary[i], g);
    r->counter.pass = &part->fwd;
    meg_model_forward(g, 0, 0, &x, &factors, boundary[0], boundary[1]);
    if (!g->run.is_training)
        return;
    r->counter.pass = &part->bwd;
    meg_model_backward(g, 0, 0, boundary[2], boundary[3]);
    r->counter.pass = &part->bwd_weight;
    if (g->run.defers_wgrad)
        meg_model_backward_weight(g, 0, 0);
}

/* Create the model of pipeline stage `stage` of a layout. */
static struct meg_model *create_model(struct counting *r, struct meg_mesh *mesh, const struct meg_layout *l,
                                      int64_t stage, const struct meg_model_run *run)
{
    struct meg_model *g;

    meg_mesh_init_dry(mesh, l, meg_layout_rank(l, (struct meg_rank_coords){ .pp = stage }));
    mesh->tp = &r->tp.c;
    mesh->cp = &r->cp.c;
    mesh->cp_a2a = &r->a2a.c;
    mesh->cp_ring = &r->ring.c;
    mesh->ep = &r->ep.c;
    mesh->etp = l->etp == l->tp ? mesh->tp : &r->etp.c;
    MEG_ASSERT_EQ(meg_model_create(&g, r->m->model, run, &r->device, mesh, NULL), 0);
    return g;
}

static void list_boundary(struct meg_cost_counts *counts, const struct meg_model *g)
{
    struct meg_boundary_tensor tensor[MEG_BOUNDARY_TENSORS];

    counts->nboundary = meg_model_boundary(g, tensor);
    for (int i = 0; i < counts->nboundary; i++)
        counts->boundary[i] = (struct meg_pipe_tensor){ tensor[i].n, tensor[i].dtype };
}

/*
 * Count stage `stage` of a pipeline of three stages.  It has layers [begin, end).  Stage 0, with begin 0, also has the
 * embedding, and stage 2, which ends with the last layer, the heads.
 */
static void count_stage(struct cost_part *part, struct counting *r, int64_t stage, int64_t begin, int64_t end,
                        const struct meg_model_run *run)
{
    int64_t first_layer[] = { 0, stage >= 1 ? begin : end, stage >= 2 ? begin : end, r->m->layout.layers };
    struct meg_layout l = r->m->layout;
    struct meg_model *g;
    struct meg_mesh mesh;

    l.pp = 3;
    l.vp = l.dp = 1;
    l.first_layer = first_layer;
    l.zero = (struct meg_zero_layout){ 0 };
    g = create_model(r, &mesh, &l, stage, run);
    run_micro_batch(part, g, r);
    list_boundary(r->counts, g);
    meg_model_close(g);
}

/* Return whether the counts of a layer include an embedding or a norm after the layers of a stack. */
static bool has_ends(const struct meg_model_desc *d, int64_t i)
{
    const int k = d->layer[i].stack;

    return (k > 0 && i == d->stack[k].begin) || (k < d->nstacks - 1 && i == d->stack[k].end - 1);
}

/* Return whether two layers have the same counts. */
static bool are_equal(const struct meg_model_desc *d, const struct meg_layout *l, int64_t i, int64_t k)
{
    return i == k || (d->layer[i].first == d->layer[k].first && d->layer[i].n == d->layer[k].n && !has_ends(d, i) &&
                      !has_ends(d, k) && meg_layout_cp_comm_type(l, i) == meg_layout_cp_comm_type(l, k));
}

/* Make the list of distinct layers. */
static void list_layers(struct meg_cost_counts *counts, const struct meg_layout *l)
{
    const struct meg_model_desc *d = &counts->desc;

    counts->index = meg_new((size_t)d->nlayers * sizeof *counts->index);
    for (int64_t i = 0; i < d->nlayers; i++) {
        int k = 0;

        while (k < counts->nlayers && !are_equal(d, l, i, counts->layer[k].first))
            k++;
        counts->index[i] = k;
        if (k < counts->nlayers)
            continue;
        counts->layer = meg_realloc_array(counts->layer, (size_t)k + 1, sizeof *counts->layer);
        counts->layer[counts->nlayers++] = (struct cost_layer){ .first = i };
    }
}

/* Count a layer, on a stage of its own. */
static void count_layer(struct cost_layer *l, struct counting *r)
{
    const struct meg_cost_model *m = r->m;
    const int variants = m->run.is_training && meg_pipe_schedule_splits_backward(&m->schedule) ? 2 : 1;
    struct meg_model_run run;

    for (int k = 0; k < variants; k++) {
        run = run_of_part(m, k == 1);
        count_stage(&l->part[k], r, 1, l->first, l->first + 1, &run);
    }
    l->recomputed = l->part[0].fwd;
    if (has_ends(&r->counts->desc, l->first) && m->run.is_training) {
        struct cost_part with = { 0 };

        run = run_of_part(m, false);
        run.recompute = MEG_RECOMPUTE_UNIFORM;
        run.recompute_num_layers = 1;
        count_stage(&with, r, 1, l->first, l->first + 1, &run);
        cost_add_pass(&with.bwd, &l->part[0].bwd, -1);
        l->recomputed = with.bwd;
    }
}

/* Count the embedding or the heads: all parts of a stage except layer i, which is its only layer. */
static void count_end(struct cost_part *end, struct counting *r, int64_t stage, int64_t i)
{
    const struct meg_model_run run = run_of_part(r->m, false);

    count_stage(end, r, stage, i, i + 1, &run);
    cost_add_part(end, &r->counts->layer[r->counts->index[i]].part[0], -1);
}

static struct meg_cost_counts *new_counts(struct counting *r, const struct meg_cost_model *m)
{
    struct meg_cost_counts *counts = meg_new(sizeof *counts);
    struct meg_batch x = largest_batch(m);

    meg_model_describe(&counts->desc, m->model);
    list_layers(counts, &m->layout);
    for (int k = 0; k < counts->desc.nstacks; k++) {
        const int64_t n = meg_batch_numel(&x, counts->desc.stack[k].tokens) / (m->layout.has_sp ? m->layout.tp : 1);

        counts->residual_nbytes[k] = cost_nbytes((double)(n * counts->desc.h), m->run.residual_dtype);
    }
    init_rank(r, m, counts);
    return counts;
}

struct meg_cost_counts *meg_cost_count(const struct meg_cost_model *m)
{
    struct counting r;
    struct meg_cost_counts *counts = new_counts(&r, m);

    for (int i = 0; i < counts->nlayers; i++)
        count_layer(&counts->layer[i], &r);
    count_end(&counts->embedding, &r, 0, 0);
    count_end(&counts->heads, &r, 2, counts->desc.nlayers - 1);
    counts->recv_nbytes = r.tp.recv_nbytes + r.cp.recv_nbytes + r.a2a.recv_nbytes + r.ring.recv_nbytes +
                          r.ep.recv_nbytes + r.etp.recv_nbytes;
    return counts;
}

double meg_cost_model_flops(const struct meg_model_conf *c, int64_t s, int64_t s_enc)
{
    struct meg_cost_model m = { .model = c, .layout = meg_layout_one, .hw = meg_hardware_find(MEG_HARDWARE_CPU) };
    struct meg_cost_counts *counts;
    struct counting r;
    double flops;

    m.run = (struct meg_model_run){ .s = s, .s_enc = s_enc, .b = 1 };
    meg_model_set_ties(&m.layout, c);
    counts = new_counts(&r, &m);
    m.layout.layers = counts->desc.nlayers;
    flops = 2 * (double)s * (double)counts->desc.h * (double)counts->desc.v; /* of the logits */
    for (int i = 0; i < counts->nlayers; i++)
        count_layer(&counts->layer[i], &r);
    for (int64_t i = 0; i < counts->desc.nlayers; i++)
        flops += counts->layer[counts->index[i]].part[0].fwd.flops;
    meg_cost_counts_free(counts);
    return 3 * flops; /* the backward pass has twice the FLOPs of the forward pass */
}

void cost_run_hooks(const struct meg_cost_model *m, const struct meg_model_hooks *hooks)
{
    struct meg_model_run run = m->run;
    struct cost_part part = { 0 };
    struct counting r;
    struct meg_mesh mesh;
    struct meg_model *g;

    MEG_ASSERT_EQ(m->layout.pp, 1);
    init_rank(&r, m, NULL);
    run.positions = 1;
    g = create_model(&r, &mesh, &m->layout, 0, &run);
    g->hooks = *hooks;
    run_micro_batch(&part, g, &r);
    meg_model_close(g);
}

void meg_cost_counts_free(struct meg_cost_counts *counts)
{
    if (!counts)
        return;
    meg_model_desc_free(&counts->desc);
    free(counts->layer);
    free(counts->index);
    free(counts);
}

void cost_add_pass(struct cost_pass *to, const struct cost_pass *w, double times)
{
    to->flops += times * w->flops;
    to->nbytes += times * w->nbytes;
    for (int i = 0; i < MEG_COST_GROUPS; i++)
        to->sent[i] += times * w->sent[i];
    to->gemm_s += times * w->gemm_s;
    to->attention_s += times * w->attention_s;
    to->comm_s += times * w->comm_s;
}

void cost_add_part(struct cost_part *to, const struct cost_part *p, double times)
{
    cost_add_pass(&to->fwd, &p->fwd, times);
    cost_add_pass(&to->bwd, &p->bwd, times);
    cost_add_pass(&to->bwd_weight, &p->bwd_weight, times);
}
