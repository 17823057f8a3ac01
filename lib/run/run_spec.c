/* run_spec.c - the specification of a training run, derived from its options. */
#include "run/run_spec.h"
#include <inttypes.h>
#include "model/family.h"
#include "option/check.h"

int meg_run_spec_make(struct meg_run_spec *s, const struct meg_train_job *job, int64_t world_size, struct meg_err *e)
{
    int r;

    *s = (struct meg_run_spec){ .job = job };
    if ((r = meg_precision_make(&s->precision, &s->scaler, &job->precision, e)) < 0 ||
        (r = meg_layout_make(&s->layout, &job->layout, world_size, e)) < 0 ||
        (r = meg_train_conf_check(&job->train, e)) < 0)
        return r;
    return meg_train_batch_schedule(&job->train, s->layout.dp, &s->batch, &s->train_iters, e);
}

struct meg_pipe_schedule_conf meg_run_spec_schedule(const struct meg_run_spec *s, int64_t num_micro)
{
    const int64_t group = s->job->layout.microbatch_group_size;
    const struct meg_pipe_schedule_conf c = { .type = s->job->layout.schedule,
                                              .stages = (int)s->layout.pp,
                                              .chunks = (int)s->layout.vp,
                                              .microbatches = num_micro,
                                              .microbatch_group = group == MEG_UNSET ? 0 : group };

    return c;
}

struct meg_model_run meg_run_spec_stage(const struct meg_model_run *run, const struct meg_pipe_schedule_conf *schedule,
                                        int64_t stage)
{
    struct meg_model_run r = *run;

    r.microbatch_slots = run->is_training ? meg_pipe_schedule_in_flight(schedule, (int)stage) : 1;
    r.defers_wgrad = run->is_training && stage > 0 && meg_pipe_schedule_splits_backward(schedule);
    return r;
}

/* ---- rules that involve the model ---- */

/* Check the schedule at each batch size of the run, and reject zb-h1 with recomputation. */
static int check_schedule(const struct meg_run_spec *s, struct meg_err *e)
{
    const struct meg_batch_schedule *b = &s->batch;
    const int64_t step = b->rampup_samples ? b->increment : b->global;

    for (int64_t global = b->rampup_samples ? b->start : b->global; global <= b->global; global += step) {
        const struct meg_pipe_schedule_conf c = meg_run_spec_schedule(s, global / (b->micro * b->dp_size));
        const int r = meg_pipe_schedule_check(&c, e);

        if (r < 0)
            return r;
    }
    if (meg_pipe_schedule_splits_backward(&s->schedule) && s->model_run.recompute != MEG_RECOMPUTE_NONE)
        return meg_fail(
            e, MEG_EUSAGE,
            "--pipeline-schedule zb-h1: cannot be combined with --recompute-activations or "
            "--recompute-granularity, because this schedule stores activations for the deferred weight gradients");
    return 0;
}

static struct meg_model_run make_model_run(const struct meg_run_spec *s)
{
    const struct meg_train_conf *c = &s->job->train;
    const struct meg_layout *l = &s->layout;

    const bool has_decoder = c->decoder_seq_length != MEG_UNSET;

    return (struct meg_model_run){ .s = has_decoder ? c->decoder_seq_length : c->seq_length,
                                   .s_enc = has_decoder ? c->seq_length : 0,
                                   .b = c->micro_batch_size,
                                   .is_training = !c->skip_train,
                                   .seed = (uint32_t)c->seed,
                                   .shards_grads = !c->skip_train && l->zero.stage >= 2,
                                   .shards_params = !c->skip_train && l->zero.stage >= 3,
                                   .dtype = s->precision.params,
                                   .residual_dtype = s->precision.residual,
                                   .grad_dtype = s->precision.grads,
                                   .recompute = meg_train_recompute(c),
                                   .recompute_num_layers = c->recompute_layers == MEG_UNSET ? 0 : c->recompute_layers,
                                   .distribute_saved_activations = c->distribute_saved_activations,
                                   .uses_graphs = meg_train_uses_graphs(c) };
}

/* Refuse options that the family of the model does not support, and require those that it needs. */
static int check_family(const struct meg_run_spec *s, struct meg_err *e)
{
    struct meg_train_job job = *s->job;
    struct meg_optgroup groups[MEG_TRAIN_OPTION_GROUPS];
    int r;

    meg_train_option_groups(groups, &job);
    r = meg_family_check_options(&job.model, groups, e);
    if (r == 0 && meg_family_of(&job.model)->samples == MEG_SAMPLES_T5 && job.train.decoder_seq_length == MEG_UNSET)
        return meg_fail(e, MEG_EUSAGE, "--decoder-seq-length is required with --model t5");
    return r;
}

/* Check that the ranks of experts can shard a parameter equally. */
static int check_expert_parts(const struct meg_layout *l, const struct meg_param *row, struct meg_err *e)
{
    for (int k = 0; k < row->ndim; k++)
        for (int i = 0; i < row->sharding[k].nparts; i++) {
            const enum meg_mesh_axis axis = row->sharding[k].part[i].axis;
            const int64_t n = row->sharding[k].part[i].n, size = meg_layout_axis_size(l, axis);

            if ((axis == MEG_AXIS_EP || axis == MEG_AXIS_ETP) && n % size)
                return meg_fail(e, MEG_EUSAGE,
                                "--expert-%s-parallel-size %" PRId64 ": must divide %" PRId64 " %s of %s",
                                axis == MEG_AXIS_EP ? "model" : "tensor", size, n,
                                axis == MEG_AXIS_EP ? "experts" : "rows or columns", row->name);
        }
    return 0;
}

/* Check that the model has experts, and that their ranks can shard them equally, if experts have other groups. */
static int check_experts(const struct meg_run_spec *s, struct meg_err *e)
{
    const struct meg_layout *l = &s->layout;
    struct meg_params p;
    bool has_experts = false;
    int r = 0;

    if (!meg_layout_has_expert_groups(l))
        return 0;
    meg_model_params(&p, &s->job->model, &meg_mesh_one);
    for (int i = 0; i < p.n && r == 0; i++) {
        has_experts |= meg_param_is_expert(&p.row[i]);
        r = check_expert_parts(l, &p.row[i], e);
    }
    meg_params_free(&p);
    if (r == 0 && !has_experts)
        return meg_fail(e, MEG_EUSAGE, "--expert-%s-parallel-size %" PRId64 ": --model %s has no experts",
                        l->ep > 1 ? "model" : "tensor", l->ep > 1 ? l->ep : l->etp,
                        meg_family_of(&s->job->model)->name);
    return r;
}

/* Check the layout against the model, and set the fields of the layout that depend on the model. */
static int fit_layout(struct meg_run_spec *s, struct meg_err *e)
{
    const struct meg_train_conf *c = &s->job->train;
    const struct meg_model_conf *m = &s->job->model;
    struct meg_layout_model model = { .s = c->seq_length,
                                      .s_decoder = c->decoder_seq_length == MEG_UNSET ? 0 : c->decoder_seq_length,
                                      .heads = m->attn.a,
                                      .groups = m->attn.g,
                                      .ffn = m->mlp.f,
                                      .vocab = m->vocab_size,
                                      .has_wide_qk_norm =
                                          m->attn.qk_layernorm && m->attn.qk_norm_scope == MEG_QK_NORM_WIDTH };
    struct meg_model_desc d;

    meg_model_describe(&d, m);
    model.layers = d.nlayers;
    model.encoder_layers = d.nstacks > 1 ? d.stack[0].end : 0;
    meg_model_desc_free(&d);
    return meg_layout_set_model(&s->layout, &s->job->layout, &model, e);
}

int meg_run_spec_fit_model(struct meg_run_spec *s, struct meg_err *e)
{
    const struct meg_train_conf *c = &s->job->train;
    const struct meg_model_conf *m = &s->job->model;
    struct meg_layout *l = &s->layout;
    int r;

    if ((r = check_family(s, e)) < 0 || (r = fit_layout(s, e)) < 0 || (r = check_experts(s, e)) < 0)
        return r;
    meg_model_set_ties(l, m);
    if ((r = meg_zero_fit(l, &s->job->zero, !m->is_untied, s->precision.params, e)) < 0 ||
        (r = meg_train_recompute_check(c, l, e)) < 0)
        return r;
    const struct meg_optim_conf *o = &s->job->optim;
    l->zero.has_complete_params = meg_optimizer_of(o)->needs_complete_params;
    const struct meg_opt_rule optim_rules[] = {
        { o->main_params_dtype == MEG_DTYPE_BF16 && s->precision.params != MEG_DTYPE_BF16, "main-params-dtype",
          ": requires --bf16" },
        { o->exp_avg_dtype == MEG_DTYPE_BF16 && !meg_optimizer_has_state(o, "exp_avg"), "exp-avg-dtype",
          ": requires --optimizer adam" },
        { o->exp_avg_sq_dtype == MEG_DTYPE_BF16 && !meg_optimizer_has_state(o, "exp_avg_sq"), "exp-avg-sq-dtype",
          ": requires --optimizer adam" },
        { 0 },
    };
    const struct meg_opt_rule rules[] = {
        { meg_train_uses_graphs(c) && (l->tp > 1 || l->cp > 1),
          c->enable_cuda_graph ? "enable-cuda-graph" : "cuda-graph-impl",
          ": cannot be combined with tensor or context parallelism, because a CUDA graph of a layer cannot contain "
          "communication" },
        { l->zero.stage == 3 && c->weight_hash_interval != MEG_UNSET, "check-weight-hash-across-dp-replicas-interval",
          ": cannot be combined with --zero-stage 3, which shards the weights" },
        { 0 },
    };
    if ((r = meg_opt_check_rules(optim_rules, meg_optim_opts, o, e)) < 0 ||
        (r = meg_opt_check_rules(rules, meg_train_opts, c, e)) < 0)
        return r;
    s->schedule = meg_run_spec_schedule(s, meg_batch_max_microbatches(&s->batch));
    s->schedule.is_forward_only = c->skip_train;
    s->model_run = make_model_run(s);
    return c->skip_train ? 0 : check_schedule(s, e);
}
