/* cost.c - cost model of a training run: memory, communication and time of a step. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "device/device.h"
#include "plan/internal.h"

void meg_cost_model_init(struct meg_cost_model *m, const struct meg_run_spec *s, int64_t num_micro)
{
    const struct meg_train_job *job = s->job;
    const struct meg_train_conf *c = &job->train;
    const struct meg_hardware *hw = meg_hardware_find(c->hardware);
    const bool is_gpu = hw->memory > 0;
    const bool has_grad_norm = job->optim.clip_grad > 0 || c->check_for_nan || s->scaler.type != MEG_SCALER_NONE;

    *m = (struct meg_cost_model){ .model = &job->model,
                                  .optim = &job->optim,
                                  .op = is_gpu ? meg_device_gpu_ops() : meg_device_current()->op,
                                  .layout = s->layout,
                                  .schedule = s->schedule,
                                  .run = s->model_run,
                                  .hw = hw,
                                  .threads = meg_hardware_threads(hw) };
    m->schedule.microbatches = num_micro;
    m->uses_host_comm = !is_gpu && meg_device_current()->op->is_host_memory;
    m->overlaps_grad_reduce = job->zero.overlap_grad_reduce;
    m->overlaps_param_gather = job->zero.overlap_param_gather;
    m->has_doc_start = job->data.reset_attention_mask;
    m->is_async_save = job->ckpt.save && job->ckpt.async_save && !c->skip_train;
    m->saves_optim = job->ckpt.save_optim;
    m->num_scalar_reduces = has_grad_norm + job->log.log_num_zeros + job->log.log_params_norm;
}

void meg_cost_model_make(struct meg_cost_model *m, const struct meg_run_spec *s, int64_t num_micro)
{
    meg_cost_model_init(m, s, num_micro);
    m->params = meg_new(sizeof *m->params);
    meg_model_params(m->params, m->model, &meg_mesh_one);
    m->sequence_flops = meg_cost_model_flops(m->model, m->run.s, m->run.s_enc);
    m->counts = meg_cost_count(m);
}

void meg_cost_model_free(struct meg_cost_model *m)
{
    meg_cost_counts_free(m->counts);
    meg_params_free(m->params);
    free(m->params);
}

/* Return whether each chunk of stage a has the same layers as that chunk of stage b. */
static bool have_equal_layers(const struct meg_cost_model *cost, int64_t a, int64_t b)
{
    const int *index = cost->counts->index;

    for (int64_t chunk = 0; chunk < cost->layout.vp; chunk++) {
        int64_t first_a, first_b, n, nb;

        meg_layout_layers(&cost->layout, a, chunk, &first_a, &n);
        meg_layout_layers(&cost->layout, b, chunk, &first_b, &nb);
        if (n != nb || memcmp(index + first_a, index + first_b, (size_t)n * sizeof *index) != 0)
            return false;
    }
    return true;
}

bool meg_cost_is_representative(const struct meg_cost_model *cost, int64_t stage)
{
    for (int64_t earlier = 1; earlier < stage && stage < cost->layout.pp - 1; earlier++)
        if (have_equal_layers(cost, earlier, stage))
            return false;
    return true;
}

/*
 * Return how many of the n layers of a stack in a chunk are fully recomputed.  Set *inputs to the number of layer
 * inputs that are stored for the recomputation.
 */
static int64_t recomputed_layers(const struct meg_model_run *run, int64_t n, int64_t *inputs)
{
    const int64_t k = run->recompute_num_layers;

    *inputs = 0;
    switch (run->recompute) {
    case MEG_RECOMPUTE_UNIFORM: *inputs = (n + k - 1) / k; return n;
    case MEG_RECOMPUTE_BLOCK: return *inputs = k < n ? k : n;
    default: return 0;
    }
}

/* Count the all-gathers of n layer inputs of stack k that are sharded over tp (distribute_saved_activations). */
static void add_input_gathers(struct cost_pass *to, const struct meg_cost_model *cost, int k, int64_t n)
{
    const int64_t tp = cost->layout.tp;
    const double nbytes = (double)n * meg_comm_volume_sharded(tp, cost->counts->residual_nbytes[k] / (double)tp);

    to->sent[MEG_COST_GROUP_TP] += nbytes;
    to->comm_s += nbytes / meg_hardware_bandwidth(cost->hw, 1, tp);
}

/*
 * Add the counts of layers [begin, end), the layers of stack k in a chunk.  has_embedding states whether the chunk has
 * the embedding before the first of them; otherwise, their input is received from another stage.
 */
static void add_layers(struct cost_part *sum, const struct meg_cost_model *cost, int k, int64_t begin, int64_t end,
                       bool has_embedding, bool defers_wgrad)
{
    const struct meg_cost_counts *counts = cost->counts;
    int64_t inputs;
    const int64_t num_recomputed = recomputed_layers(&cost->run, end - begin, &inputs);

    for (int64_t i = begin; i < end; i++) {
        const struct cost_layer *l = &counts->layer[counts->index[i]];

        cost_add_part(sum, &l->part[defers_wgrad], 1);
        if (i - begin < num_recomputed)
            cost_add_pass(&sum->bwd, &l->recomputed, 1);
    }
    if (cost->run.distribute_saved_activations) /* the input received from another stage needs no all-gather */
        add_input_gathers(&sum->bwd, cost, k, inputs - !has_embedding);
}

void cost_count_chunk(struct cost_part *sum, const struct meg_cost_model *cost, int64_t stage, int64_t chunk)
{
    const struct meg_model_desc *d = &cost->counts->desc;
    const bool is_first = meg_layout_is_first(stage, chunk);
    const bool defers_wgrad = meg_run_spec_stage(&cost->run, &cost->schedule, stage).defers_wgrad;
    int64_t first, n;

    *sum = (struct cost_part){ 0 };
    meg_layout_layers(&cost->layout, stage, chunk, &first, &n);
    for (int k = 0; k < d->nstacks; k++) {
        const struct meg_stack *s = &d->stack[k];
        const int64_t begin = first > s->begin ? first : s->begin, end = first + n < s->end ? first + n : s->end;

        if (begin < end)
            add_layers(sum, cost, k, begin, end, k > 0 ? begin == s->begin : is_first, defers_wgrad);
    }
    if (is_first)
        cost_add_part(sum, &cost->counts->embedding, 1);
    if (meg_layout_is_last(&cost->layout, stage, chunk))
        cost_add_part(sum, &cost->counts->heads, 1);
}

double cost_boundary_nbytes(const struct meg_cost_model *cost, int64_t vstage)
{
    const struct meg_layout *l = &cost->layout;
    const struct meg_cost_counts *counts = cost->counts;
    const unsigned sent = meg_desc_boundary(&counts->desc, l->first_layer ? l->first_layer[vstage] : 0);
    double nbytes = 0;

    if (vstage == 0 || vstage == l->pp * l->vp)
        return 0;
    for (int i = 0; i < counts->nboundary; i++)
        if (sent & 1u << i)
            nbytes += cost_nbytes((double)counts->boundary[i].n, counts->boundary[i].dtype);
    return nbytes;
}
