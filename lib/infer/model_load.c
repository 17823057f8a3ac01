/* model_load.c - load a trained model and its tokenizer for inference. */
#include "infer/model_load.h"
#include <inttypes.h>
#include <stdlib.h>
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "model/family.h"

/* clang-format off */
const struct meg_opt_names meg_load_ignored[] = {
    { "it configures training", "finetune no-load-optim no-load-rng global-batch-size=N log-interval=N num-workers=N "
      "use-checkpoint-args exit-on-missing-checkpoint recompute-activations checkpoint-activations "
      "checkpoint-num-layers=N sequence-parallel distributed-backend=nccl|gloo DDP-impl=local|torch deepspeed" },
    { "sequences of any length up to the maximum of the model are read, several at once",
      "micro-batch-size=N batch-size=N seq-length=N" },
    { "keys and values are cached in any case", "recompute inference-max-requests=N inference-max-seq-length=N "
      "inference-batch-times-seqlen-threshold=N flash-decode" },
    { "it selects kernels of Megatron", "use-mcore-models use-legacy-models transformer-impl=NAME use-flash-attn "
      "attention-backend=NAME no-masked-softmax-fusion no-bias-dropout-fusion no-bias-swiglu-fusion no-rope-fusion "
      "no-gradient-accumulation-fusion no-persist-layer-norm" },
    { "attention scores and softmax are fp32", "attention-softmax-in-fp32 apply-query-key-layer-scaling "
      "no-query-key-layer-scaling" },
    { "the vocabulary is not padded", "make-vocab-size-divisible-by=N" },
    { 0 }
};

#define NOT_YET(feature) "not supported yet: " feature "; see NOT YET in meg(7)"
const struct meg_opt_names meg_load_unsupported[] = {
    { "a model is loaded on one device, in any layout of its checkpoint; remove the option",
      "tensor-model-parallel-size=1 pipeline-model-parallel-size=1 context-parallel-size=1" },
    { "print to standard output and redirect it to a file", "sample-output-file" },
    { NOT_YET("generation without a prompt"), "genfile num-samples=0" },
    { NOT_YET("the REST server"), "port" },
    { NOT_YET("beam search"), "beam-width beam-search" },
    { NOT_YET("WikiText, LAMBADA, RACE, MNLI and QQP tasks"),
      "task:WIKITEXT103 task:LAMBADA task:RACE task:MNLI task:QQP strict-lambada train-data valid-data epochs "
      "keep-last eval-micro-batch-size pretrained-checkpoint num-microbatches-in-minibatch" },
    { NOT_YET("retrieval models"), "task:ICT-ZEROSHOT-NQ task:RETRIEVER-EVAL task:RET-FINETUNE-NQ qa-data-* faiss-* "
      "train-with-neg train-hard-neg val-av-rank-* titles-data-path evidence-data-path block-data-path embedding-path "
      "indexer-* retriever-* ict-* bert-load biencoder-* query-in-block-prob" },
    { NOT_YET("mixture of experts"), "num-experts moe-* expert-*" },
    { NOT_YET("multi-latent attention"), "multi-latent-attention" },
    { NOT_YET("Mamba-2 and hybrid models"), "hybrid-* mamba-*" },
    { 0 }
};
/* clang-format on */

const struct meg_opt meg_load_opts[] = {
    { "load", 0, MEG_STR(struct meg_load_conf, load), "DIR", NULL,
      "load the model in DIR: a checkpoint of meg-train or Megatron, or a Hugging Face model" },
    { "ckpt-step", 0, MEG_I64(struct meg_load_conf, ckpt_step), "N", NULL, "iteration to load; default: the latest" },
    { "params-dtype", 0, MEG_ENUM(struct meg_load_conf, params_dtype), "auto|fp32|bf16|fp16", "auto",
      "dtype of the weights and activations in memory; auto: as in the checkpoint" },
    { "bf16", 0, MEG_BOOL(struct meg_load_conf, bf16), NULL, "no",
      "hold weights and activations in bfloat16, as --params-dtype bf16 does" },
    { "fp16", 0, MEG_BOOL(struct meg_load_conf, fp16), NULL, "no",
      "hold weights and activations in IEEE half precision, as --params-dtype fp16 does" },
    { 0 }
};

static int check_dtype(const struct meg_load_conf *c, struct meg_err *e)
{
    if (c->bf16 && c->fp16)
        return meg_fail(e, MEG_EUSAGE, "--fp16 cannot be combined with --bf16");
    if (meg_opt_was_given(&c->params_dtype) &&
        ((c->bf16 && c->params_dtype != MEG_LOAD_BF16) || (c->fp16 && c->params_dtype != MEG_LOAD_FP16)))
        return meg_fail(e, MEG_EUSAGE, "--params-dtype %s: contradicts --%s; use only one of the two options",
                        meg_opt_choice(meg_load_opts, "params-dtype", c), c->bf16 ? "bf16" : "fp16");
    return 0;
}

/* Return the dtype in which to hold the weights of ckpt. */
static enum meg_dtype dtype_of(const struct meg_load_conf *c, const struct meg_ckpt *ckpt)
{
    if (c->bf16 || c->params_dtype == MEG_LOAD_BF16)
        return MEG_DTYPE_BF16;
    if (c->fp16 || c->params_dtype == MEG_LOAD_FP16)
        return MEG_DTYPE_F16;
    return c->params_dtype == MEG_LOAD_FP32 ? MEG_DTYPE_F32 : meg_ckpt_dtype(ckpt);
}

/* Set the ids that end a continuation: the checkpoint's EOS ids and m->eod, if there is one. */
static void set_eos_ids(struct meg_loaded_model *m, const struct meg_ckpt *ckpt)
{
    const struct meg_ids *known = meg_ckpt_eos_ids(ckpt);
    bool has_eod = m->eod < 0;

    meg_ids_reserve(&m->eos_ids, known->n + 1);
    for (int64_t i = 0; i < known->n; i++) {
        m->eos_ids.v[m->eos_ids.n++] = known->v[i];
        has_eod |= known->v[i] == m->eod;
    }
    if (!has_eod)
        m->eos_ids.v[m->eos_ids.n++] = m->eod;
}

/* Return id if the model has it, else -1. */
static int32_t id_in(int32_t id, int64_t vocab_size)
{
    return id < vocab_size ? id : -1;
}

static int open_tokenizer(struct meg_loaded_model *m, const struct meg_ckpt *ckpt, const struct meg_tok_conf *given,
                          struct meg_err *e)
{
    struct meg_tok_conf tc = *given;
    const bool is_own = !tc.type && !tc.name_or_path;
    const struct meg_tok_special_ids *special;
    int64_t v = meg_ckpt_vocab_size(ckpt), n;
    int r;

    m->bos = meg_ckpt_bos(ckpt);
    m->eod = meg_ckpt_eod(ckpt);
    m->unpadded_vocab = v;
    meg_ckpt_tok_conf(ckpt, &tc);
    if (!tc.type && !tc.name_or_path)
        return 0;
    if ((r = meg_tokenizer_open(&m->tok, &tc, e)) < 0 || (r = meg_ckpt_check_tokenizer(ckpt, m->tok, v, is_own, e)) < 0)
        return r;
    special = meg_tokenizer_special_ids(m->tok);
    n = meg_tokenizer_vocab_size(m->tok);
    if (m->bos < 0)
        m->bos = id_in(special->bos, v);
    if (id_in(special->eod, v) >= 0)
        m->eod = special->eod;
    m->unpadded_vocab = n < v ? n : v;
    return 0;
}

static int check_family(const struct meg_model_conf *model, enum meg_prediction predicts, const char *path,
                        struct meg_err *e)
{
    const char *name = meg_family_of(model)->title;
    const enum meg_sample_type samples = meg_family_of(model)->samples;

    if (predicts == MEG_PREDICT_NEXT && samples != MEG_SAMPLES_GPT)
        return meg_fail(e, MEG_EUSAGE, "%s: a %s model predicts masked tokens, not the next token; use a GPT model",
                        path, name);
    if (predicts == MEG_PREDICT_MASKED && samples == MEG_SAMPLES_GPT)
        return meg_fail(e, MEG_EUSAGE,
                        "%s: a %s model predicts the next token, not masked tokens; use a BERT or T5 model", path,
                        name);
    return 0;
}

int meg_load_model(struct meg_loaded_model *m, const struct meg_load_conf *conf, enum meg_prediction predicts,
                   const struct meg_tok_conf *tc, struct meg_err *e)
{
    struct meg_model_run run = { .s = 1, .s_enc = 1, .b = 1, .positions = 1 };
    const struct meg_device *device;
    struct meg_ckpt *ckpt = NULL;
    struct meg_model_conf model;
    int r;

    *m = (struct meg_loaded_model){ 0 };
    if ((r = check_dtype(conf, e)) < 0 || (r = meg_device_open(&device, &conf->device, e)) < 0 ||
        (r = meg_ckpt_open_given(&ckpt, conf->load, conf->ckpt_step, &conf->model, e)) < 0 ||
        (r = meg_ckpt_model_conf(ckpt, &model, e)) < 0 || (r = meg_given_model_check(&conf->model, ckpt, e)) < 0 ||
        (r = check_family(&model, predicts, meg_ckpt_path(ckpt), e)) < 0 || (r = meg_ckpt_check_head(ckpt, e)) < 0 ||
        (r = open_tokenizer(m, ckpt, tc, e)) < 0)
        goto out;
    set_eos_ids(m, ckpt);
    run.dtype = run.residual_dtype = dtype_of(conf, ckpt);
    if ((r = meg_model_create(&m->g, &model, &run, device, &meg_mesh_one, e)) < 0 ||
        (r = meg_ckpt_load(
             ckpt, &m->g->params, m->g->mesh,
             &(struct meg_ckpt_shard){ .data = m->g->w, .device = m->g->device, .dtype = m->g->run.dtype }, 1, e)) < 0)
        goto out;
    meg_debug("%s: %" PRId64 " parameters, %" PRId64 " token ids%s", meg_ckpt_path(ckpt), m->g->params.numel,
              model.vocab_size, m->tok ? "" : ", no tokenizer");
out:
    meg_ckpt_close(ckpt);
    if (r < 0)
        meg_unload_model(m);
    return r;
}

void meg_unload_model(struct meg_loaded_model *m)
{
    meg_model_close(m->g);
    meg_tokenizer_close(m->tok);
    free(m->eos_ids.v);
    *m = (struct meg_loaded_model){ 0 };
}
