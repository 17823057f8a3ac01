/* write.c - write Megatron's per-rank checkpoints, one file per rank with its shards. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ckpt/megatron/megatron.h"
#include "ckpt/megatron/zip.h"
#include "file/file.h"

#define FOLDER "model_optim_rng/" /* prefix of the member names in the ZIP file */

/* A tensor of one rank. */
struct item {
    const struct meg_param *row;
    struct ckpt_tp_shard shard;
    enum ckpt_remap remap;
    int64_t dim[MEG_PARAM_MAXDIM];
    int ndim;
    char name[CKPT_NAME_CHARS]; /* keys of nested dicts, separated by / */
};

/*
 * Return the number of layers per pipeline stage, which is the same in all stages.  If a T5 has several stages, each
 * stage has layers of only one stack.
 */
static int64_t layers_per_stage(const struct ckpt_export *x)
{
    return meg_model_all_layers(x->s->model) / x->to->pipeline;
}

/*
 * Return the number of pipeline stages of T5's encoder, which is also the index of the decoder's first stage.  Return 0
 * if there is only one stage, or the model is not a T5.
 */
static int64_t split_rank(const struct ckpt_export *x)
{
    const bool is_split = x->s->model->family == MEG_FAMILY_T5 && x->to->pipeline > 1;

    return is_split ? x->s->model->num_layers / layers_per_stage(x) : 0;
}

/* ---- parallel sizes ---- */

static int check_divides(const char *option, int64_t n, const char *what, int64_t by, struct meg_err *e)
{
    if (by % n == 0)
        return 0;
    return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must divide %s %" PRId64, option, n, what, by);
}

static int check_sizes(const struct ckpt_export *x, struct meg_err *e)
{
    static const char tensor[] = "target-tensor-parallel-size", pipeline[] = "target-pipeline-parallel-size";
    const struct meg_model_conf *m = x->s->model;
    const struct meg_ckpt_megatron_conf *to = x->to;
    int r;

    if (to->tensor < 1 || to->tensor > 99)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be from 1 to 99", tensor, to->tensor);
    if (to->pipeline < 1 || to->pipeline > 999)
        return meg_fail(e, MEG_EUSAGE, "--%s %" PRId64 ": must be from 1 to 999", pipeline, to->pipeline);
    if (to->vocab_multiple < 1 || to->vocab_multiple > 1 << 20)
        return meg_fail(e, MEG_EUSAGE, "--make-vocab-size-divisible-by %" PRId64 ": must be from 1 to %d",
                        to->vocab_multiple, 1 << 20);
    if ((r = check_divides(tensor, to->tensor, "the number of attention heads,", m->attn.a, e)) < 0 ||
        (r = check_divides(tensor, to->tensor, "the number of query groups,", m->attn.g, e)) < 0 ||
        (r = check_divides(tensor, to->tensor, "the width of the MLP,", m->mlp.f, e)) < 0)
        return r;
    if ((r = check_divides(pipeline, to->pipeline, "the number of layers,", meg_model_all_layers(m), e)) == 0 &&
        to->pipeline > 1 && m->num_layers % layers_per_stage(x))
        r = meg_fail(e, MEG_EUSAGE,
                     "--%s %" PRId64 ": a stage of %" PRId64 " layers would have layers of the encoder and of the "
                     "decoder; choose a size for which the %" PRId64 " encoder layers fill their stages",
                     pipeline, to->pipeline, layers_per_stage(x), m->num_layers);
    return r;
}

int64_t ckpt_padded_vocab(const struct meg_model_conf *m, const struct meg_ckpt_megatron_conf *to)
{
    const int64_t multiple = to->vocab_multiple * to->tensor;

    return (m->vocab_size + multiple - 1) / multiple * multiple;
}

/* ---- names ---- */

/* Return whether the tensor `name` is in a decoder with cross-attention, which only T5 has. */
static bool has_cross_attention(const struct ckpt_export *x, const char *name)
{
    return x->s->model->family == MEG_FAMILY_T5 && strncmp(name, "decoder.", 8) == 0;
}

/* Append the foreign equivalent of `rest`, which is the native `name` without the layer stack and the layer number. */
static void append_in_stack(struct meg_str *out, const struct ckpt_export *x, const char *name, const char *rest)
{
    const bool is_legacy = x->to->names == MEG_CKPT_NAMES_LEGACY;

    if (is_legacy && has_cross_attention(x, name) && ckpt_replace_prefix(out, rest, ckpt_legacy_decoder_names, false))
        return;
    if (x->to->names == MEG_CKPT_NAMES_MCORE ||
        !ckpt_replace_prefix(out, rest, is_legacy ? ckpt_legacy_names : ckpt_te_names, false))
        meg_str_printf(out, "%s", rest);
}

static const char *legacy_stack(const struct ckpt_export *x, const char *name)
{
    return has_cross_attention(x, name) ? "language_model/decoder/" : "language_model/encoder/";
}

/*
 * Append the legacy name of a tensor outside the layers, with '/' between the keys of nested dicts.  The part of the
 * name after "encoder/", "decoder/", "pooler/" or "lm_head/" is one key, which may contain dots.
 */
static void legacy_outside_layers(struct meg_str *out, const struct ckpt_export *x, const char *name)
{
    static const char *const heads[] = { "lm_head.", "binary_head.", "output_layer.bias" };
    const bool is_stack = strncmp(name, "decoder.", 8) == 0 || strncmp(name, "encoder.", 8) == 0;
    const bool is_embedding = strncmp(name, "embedding.", 10) == 0;
    bool is_head = false;

    if (!x->s->model->is_untied && strcmp(name, "output_layer.weight") == 0) {
        meg_str_printf(out, "word_embeddings_for_head/weight");
        return;
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        is_head = is_head || strncmp(name, heads[i], strlen(heads[i])) == 0;
    if (is_stack) {
        meg_str_printf(out, "%s", legacy_stack(x, name));
        append_in_stack(out, x, name, name + 8);
    } else if (is_head) {
        if (!ckpt_replace_prefix(out, name, ckpt_legacy_head_names, false))
            meg_str_printf(out, "%s", name);
        *strchr(out->s, '.') = '/';
    } else {
        meg_str_printf(out, "language_model/%s", name);
        do
            *strchr(out->s, '.') = '/';
        while (is_embedding && strchr(out->s, '.'));
    }
}

/* Print the name that a tensor has in a rank's file; its layer number is relative to first_layer. */
static void name_of(char buf[CKPT_NAME_CHARS], const struct ckpt_export *x, const char *name, int64_t first_layer)
{
    const bool is_legacy = x->to->names == MEG_CKPT_NAMES_LEGACY;
    struct meg_str out = { 0 };
    char stack[9];
    int64_t layer;
    int n = 0;

    if (sscanf(name, "%8[a-z.]layers.%" SCNd64 ".%n", stack, &layer, &n) == 2 && n > 0) {
        meg_str_printf(&out, "%slayers.%" PRId64 ".", is_legacy ? legacy_stack(x, name) : stack, layer - first_layer);
        append_in_stack(&out, x, name, name + n);
    } else if (is_legacy) {
        legacy_outside_layers(&out, x, name);
    } else {
        meg_str_printf(&out, "%s", name);
    }
    snprintf(buf, CKPT_NAME_CHARS, "%s", out.s);
    meg_str_free(&out);
}

/* ---- the tensors of a rank ---- */

/* Append a parameter under the name `name`. */
static void add_item(struct item *v, int *n, const struct ckpt_export *x, const struct meg_param *row, const char *name,
                     int64_t t, int64_t first_layer)
{
    struct item *it = &v[(*n)++];

    it->row = row;
    it->shard = (struct ckpt_tp_shard){
        .model = x->s->model, .tp_rank = t, .tp_size = x->to->tensor, .vocab_rows = x->vocab_rows
    };
    it->remap = strstr(name, "_relative_pos_emb.") ? CKPT_REPLICATED : CKPT_SAME;
    it->ndim = ckpt_foreign_shape(it->dim, &it->shard, row, it->remap);
    name_of(it->name, x, name, first_layer);
}

/* Move the tensors of the dict language_model before the others, so that each dict is written once. */
static void sort_by_dict(struct item *v, int n)
{
    static const char dict[] = "language_model/";
    int at = 0;

    for (int i = 0; i < n; i++) {
        const struct item it = v[i];

        if (strncmp(it.name, dict, sizeof dict - 1) != 0)
            continue;
        memmove(&v[at + 1], &v[at], (size_t)(i - at) * sizeof *v);
        v[at++] = it;
    }
}

/*
 * Return whether stage p has a parameter.  The first stage of T5's decoder has copies of the embeddings, and each stage
 * has the relative biases of both stacks.
 */
static bool is_in_stage(const struct ckpt_export *x, const struct meg_param *row, int64_t p)
{
    const int64_t each = layers_per_stage(x), first = p ? 1 + p * each : 0;
    const bool is_last = p == x->to->pipeline - 1;

    return (row->layer_group >= first && (is_last || row->layer_group < 1 + (p + 1) * each)) ||
           (p > 0 && p == split_rank(x) && strncmp(row->name, "embedding.", 10) == 0) ||
           strstr(row->name, "_relative_pos_emb.");
}

/* Append the tensors of v[0..n) that Megatron core's T5 has under a second name.  Return the new number of tensors. */
static int add_t5_copies(struct item *v, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        struct meg_str name = { 0 };

        if (!ckpt_replace_prefix(&name, v[i].name, ckpt_t5_copies, false))
            continue;
        v[n] = v[i];
        snprintf(v[n++].name, CKPT_NAME_CHARS, "%s", name.s);
        meg_str_free(&name);
    }
    return n;
}

/* List the tensors of tensor-parallel rank t of stage p in *out, which the caller frees.  Return their number. */
static int list_items(struct item **out, const struct ckpt_export *x, int64_t t, int64_t p)
{
    enum { MORE = 4 }; /* limit of extra tensors: the tied output weight, copies of output weight, bias and positions */
    const struct meg_params *params = x->s->params;
    const struct meg_model_conf *m = x->s->model;
    const struct meg_param *word = meg_params_find(params, "embedding.word_embeddings.weight");
    int64_t first_layer = p * layers_per_stage(x);
    struct item *v = meg_new((size_t)(params->n + MORE) * sizeof *v);
    int n = 0;

    if (first_layer >= m->num_layers)
        first_layer -= m->num_layers; /* layers of T5's decoder are numbered from 0 */
    for (int i = 0; i < params->n; i++)
        if (is_in_stage(x, &params->row[i], p))
            add_item(v, &n, x, &params->row[i], params->row[i].name, t, first_layer);
    if (p == x->to->pipeline - 1 && !m->is_untied && !is_in_stage(x, word, p))
        add_item(v, &n, x, word, "output_layer.weight", t, 0);
    if (m->family == MEG_FAMILY_T5 && x->to->names != MEG_CKPT_NAMES_LEGACY)
        n = add_t5_copies(v, n);
    sort_by_dict(v, n);
    *out = v;
    return n;
}

/* ---- the pickle ---- */

static void put_int(struct meg_pickle_writer *p, const char *key, int64_t v)
{
    meg_pickle_put_str(p, key);
    meg_pickle_put_int(p, v);
}

static void put_bool(struct meg_pickle_writer *p, const char *key, bool v)
{
    meg_pickle_put_str(p, key);
    meg_pickle_put_bool(p, v);
}

/* Write an option that is a word, a number, a list of numbers, such as [1,1,0], or a tuple, such as 4095,0. */
static void put_text(struct meg_pickle_writer *p, const char *text)
{
    const bool is_list = *text == '[', is_number = !strchr(text, ',');

    if (isalpha((unsigned char)*text)) {
        meg_pickle_put_str(p, text);
        return;
    }
    if (!is_number)
        meg_str_add(&p->s, "(", 1);
    for (char *end; *(text += strspn(text, "[],")); text = end) {
        const double x = strtod(text, &end);

        if (x == floor(x))
            meg_pickle_put_int(p, (int64_t)x);
        else
            meg_pickle_put_float(p, x);
    }
    if (!is_number)
        meg_str_add(&p->s, is_list ? "l" : "t", 1);
}

/* Return whether to write an option to args.  Options that few of Megatron's models have are written only if set. */
static bool is_written(const struct meg_opt *row, const struct meg_model_conf *m)
{
    static const char rare[] =
        "decoder-num-layers glu-activation activation-func softmax-scale softmax-type clip-qkv qk-norm-* "
        "attn-logit-softcapping final-logit-softcapping logit-multiplier apply-layernorm-1p "
        "norm-no-* norm-placement parallel-residual embed-layernorm embedding-multiplier "
        "residual-multiplier position-embedding-offset add-proj-bias add-mlp-bias "
        "add-output-bias quick-geglu squared-relu gated-linear-unit glu-linear-offset activation-func-clamp-value "
        "window-size window-attn-skip-freq no-rope-freq rotary-base-window rope-long-factors "
        "rope-short-factors rope-original-* rope-scaling-low-* rope-scaling-high-* "
        "rope-scaling-original-* attn-temperature-*";
    char *value = meg_opt_value(row, m);
    const bool is_set = meg_opt_is_set(row, value);

    free(value);
    if (meg_opt_is_listed("relative-*", row->name, NULL))
        return m->position_embedding_type == MEG_POSITION_RELATIVE;
    if (meg_opt_is_listed("yarn-* mscale mscale-all-dim rotary-scaling-factor", row->name, NULL))
        return m->position_embedding_type == MEG_POSITION_YARN;
    return is_set || !meg_opt_is_listed(rare, row->name, NULL);
}

/* Write the options of the model under their attribute names. */
static void put_options(struct meg_pickle_writer *p, const struct meg_model_conf *m)
{
    char buf[64];

    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        const char *name = ckpt_arg_name(buf, row);
        const void *field = (const char *)m + row->offset;

        if (!name || !is_written(row, m))
            continue;
        meg_pickle_put_str(p, name);
        switch (row->type) {
        case MEG_OPT_I64:
            if (*(const int64_t *)field == MEG_UNSET)
                meg_pickle_put_none(p);
            else
                meg_pickle_put_int(p, *(const int64_t *)field);
            break;
        case MEG_OPT_ENUM: meg_pickle_put_str(p, meg_opt_choice(meg_model_opts, row->name, m)); break;
        case MEG_OPT_F64:
            if (isnan(*(const double *)field))
                meg_pickle_put_none(p);
            else
                meg_pickle_put_float(p, *(const double *)field);
            break;
        case MEG_OPT_BOOL:
        case MEG_OPT_STORE_FALSE: meg_pickle_put_bool(p, *(const bool *)field); break;
        default: MEG_ASSERT(row->type == MEG_OPT_STR); put_text(p, *(const char *const *)field);
        }
    }
}

static int64_t length_or_max(const struct ckpt_export *x, int64_t length)
{
    return length == MEG_UNSET ? x->s->model->max_position_embeddings : length;
}

void ckpt_put_args(struct meg_pickle_writer *p, const struct ckpt_export *x)
{
    const struct meg_model_conf supported = ckpt_supported_options(x->s->model, x->to->names), *m = &supported;

    meg_pickle_put_namespace_begin(p);
    put_options(p, m);
    put_int(p, "seq_length", length_or_max(x, x->to->seq_length));
    if (m->family == MEG_FAMILY_T5) {
        put_int(p, "encoder_num_layers", m->num_layers);
        put_int(p, "encoder_seq_length", length_or_max(x, x->to->seq_length));
        put_int(p, "decoder_seq_length", length_or_max(x, x->to->decoder_seq_length));
    }
    if (split_rank(x) > 0)
        put_int(p, "pipeline_model_parallel_split_rank", split_rank(x));
    put_bool(p, "add_position_embedding", m->position_embedding_type == MEG_POSITION_LEARNED);
    put_int(p, "tensor_model_parallel_size", x->to->tensor);
    put_int(p, "pipeline_model_parallel_size", x->to->pipeline);
    put_int(p, "make_vocab_size_divisible_by", x->to->vocab_multiple);
    put_int(p, "padded_vocab_size", x->vocab_rows);
    put_int(p, "true_vocab_size", m->vocab_size);
    put_bool(p, "fp16", false);
    put_bool(p, "bf16", false);
    meg_pickle_put_str(p, "params_dtype");
    meg_pickle_put_global(p, "torch", "float32");
    put_int(p, "iteration", x->to->iteration > 0 ? x->to->iteration : 0);
    put_int(p, "consumed_train_samples", x->to->consumed_samples > 0 ? x->to->consumed_samples : 0);
    put_int(p, "consumed_valid_samples", 0);
    meg_pickle_put_namespace_end(p);
}

int ckpt_check_written_args(const struct ckpt_export *x, struct meg_err *e)
{
    static const char *const formats[] = { "the format of Megatron before core", "the format of Megatron core" };
    struct meg_model_conf back = { 0 };
    struct meg_pickle_writer args = { 0 };
    struct meg_pickle read;
    int r;

    meg_pickle_begin(&args);
    ckpt_put_args(&args, x);
    meg_pickle_end(&args);
    if ((r = meg_pickle_read(&read, args.s.s, args.s.n, "args", e)) == 0 &&
        (r = ckpt_read_args(&back, read.root, x->s->model->family, "args", e)) == 0) {
        meg_model_conf_check(&back, NULL); /* derive unset options */
        r = ckpt_refuse_lost_options(x->s->model, &back, formats[x->to->names != MEG_CKPT_NAMES_LEGACY], e);
    }
    meg_pickle_free(&read);
    meg_pickle_writer_free(&args);
    return r;
}

/*
 * Write the key of the tensor `name` after the tensor `previous`.  A name is the path of a tensor in nested dicts,
 * separated by slashes.  First end the dicts of `previous` that do not contain `name`, then begin the remaining dicts
 * of `name`.
 */
static void put_key(struct meg_pickle_writer *p, const char *previous, const char *name)
{
    size_t shared = 0, depth;

    for (size_t i = 0; previous[i] == name[i] && name[i]; i++)
        if (name[i] == '/')
            shared = i + 1;
    for (depth = shared; previous[depth]; depth++)
        if (previous[depth] == '/')
            meg_pickle_put_dict_end(p);
    for (const char *part = name + shared, *slash;; part = slash + 1) {
        char key[CKPT_NAME_CHARS];

        slash = strchr(part, '/');
        snprintf(key, sizeof key, "%.*s", slash ? (int)(slash - part) : (int)strlen(part), part);
        meg_pickle_put_str(p, key);
        if (!slash)
            return;
        meg_pickle_put_dict_begin(p);
    }
}

static void put_model(struct meg_pickle_writer *p, const struct item *v, int n)
{
    const char *previous = "";

    meg_pickle_put_str(p, "model");
    meg_pickle_put_dict_begin(p);
    for (int i = 0; i < n; i++) {
        put_key(p, previous, v[i].name);
        meg_pickle_put_tensor(p, v[i].dim, v[i].ndim);
        previous = v[i].name;
    }
    for (; *previous; previous++)
        if (*previous == '/')
            meg_pickle_put_dict_end(p);
    meg_pickle_put_dict_end(p);
}

/* ---- files ---- */

/* Write the elements of tensor `it` as ZIP member data/I, where I is i. */
static int write_tensor_data(struct meg_zip_writer *z, const struct ckpt_export *x, const struct item *it, int i,
                             struct meg_err *e)
{
    const size_t nbytes = (size_t)(it->dim[0] * (it->ndim > 1 ? it->dim[1] : 1)) * sizeof(float);
    float *v = malloc(nbytes);
    char name[64];
    int r;

    if (!v)
        return meg_fail(e, MEG_EFAIL, "out of memory while writing tensor %s", it->name);
    snprintf(name, sizeof name, FOLDER "data/%d", i);
    if ((r = ckpt_build_foreign(v, x->s, &it->shard, it->row, it->remap, e)) == 0)
        r = meg_zip_add(z, name, v, nbytes, e);
    free(v);
    return r;
}

static int write_rank(const char *path, const struct ckpt_export *x, int64_t t, int64_t p, struct meg_err *e)
{
    struct meg_pickle_writer pickle = { 0 };
    struct meg_file f = { 0 };
    struct meg_zip_writer z = { .f = &f };
    struct item *v;
    const int n = list_items(&v, x, t, p);
    int r;

    meg_pickle_begin(&pickle);
    meg_pickle_put_dict_begin(&pickle);
    meg_pickle_put_str(&pickle, "args");
    ckpt_put_args(&pickle, x);
    meg_pickle_put_str(&pickle, "checkpoint_version");
    meg_pickle_put_float(&pickle, 3.0);
    put_int(&pickle, "iteration", x->to->iteration > 0 ? x->to->iteration : 0);
    put_model(&pickle, v, n);
    meg_pickle_put_dict_end(&pickle);
    meg_pickle_end(&pickle);

    if ((r = meg_file_create(&f, path, e)) < 0 ||
        (r = meg_zip_add(&z, FOLDER "data.pkl", pickle.s.s, pickle.s.n, e)) < 0 ||
        (r = meg_zip_add(&z, FOLDER "byteorder", "little", 6, e)) < 0)
        goto out;
    for (int i = 0; i < n; i++)
        if ((r = write_tensor_data(&z, x, &v[i], i, e)) < 0)
            goto out;
    if ((r = meg_zip_add(&z, FOLDER "version", "3\n", 2, e)) == 0 && (r = meg_zip_finish(&z, e)) == 0)
        r = meg_file_commit(&f, e);
out:
    meg_file_abandon(&f);
    meg_zip_writer_free(&z);
    meg_pickle_writer_free(&pickle);
    free(v);
    return r;
}

static int write_ranks(const char *folder, const struct ckpt_export *x, struct meg_err *e)
{
    int r = 0;

    for (int64_t p = 0; p < x->to->pipeline; p++)
        for (int64_t t = 0; t < x->to->tensor && r == 0; t++) {
            char name[64];
            char *path = ckpt_path(folder, ckpt_rank_file(name, t, p, x->to->pipeline));
            char *slash = strrchr(path, '/');

            *slash = 0;
            r = meg_mkdirs(path, e);
            *slash = '/';
            if (r == 0)
                r = write_rank(path, x, t, p, e);
            free(path);
        }
    return r;
}

int meg_ckpt_export_megatron(const struct meg_ckpt_save_args *s, const struct meg_ckpt_megatron_conf *to,
                             struct meg_err *e)
{
    struct ckpt_export x = { .s = s, .to = to };
    char *tmp = NULL;
    int r = check_sizes(&x, e);

    if (r < 0)
        return r;
    x.vocab_rows = ckpt_padded_vocab(s->model, to);
    if ((r = ckpt_check_written_args(&x, e)) == 0 && (r = ckpt_make_folder(&tmp, s->dir, to->iteration, e)) == 0 &&
        (r = write_ranks(tmp, &x, e)) == 0)
        r = ckpt_commit(s->dir, tmp, to->iteration, e);
    if (r < 0 && tmp)
        meg_remove_tree(tmp, NULL);
    free(tmp);
    return r;
}
