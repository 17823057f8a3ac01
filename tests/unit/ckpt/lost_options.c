/*
 * Each option of a model, changed in models of all families, in each format: an export is read back as the same model,
 * or it is refused with a message that names the option and its value, and nothing is written.
 */
#define _GNU_SOURCE /* memmem in ckpt_convert.h */
#include <dirent.h>
#include <math.h>
#include <omp.h>
#include "ckpt_convert.h"
#include "base/num.h"
#include "model/desc.h"
#include "nn/attn/cross_attention.h"
#include "nn/attn/self_attention.h"
#include "nn/lm_head.h"
#include "nn/mlp.h"

/* Files of this test need not survive a crash of the machine. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

#define SIZES                                                                                                          \
    "num-layers = 1\nhidden-size = 16\nffn-hidden-size = 12\nnum-attention-heads = 4\nmax-position-embeddings = 6\n"
#define LLAMA                                                                                                          \
    SIZES "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = yes\ndisable-bias-linear = yes\n"         \
          "untie-embeddings-and-output-weights = yes\n"
#define T5                                                                                                             \
    SIZES "model = t5\nposition-embedding-type = relative\nnormalization = RMSNorm\ndisable-bias-linear = yes\n"       \
          "softmax-scale = 1\ndecoder-num-layers = 2\n"
static const char *const bases[] = {
    SIZES,
    SIZES "num-attention-heads = 3\nkv-channels = 4\n", /* the width is no multiple of the number of heads */
    LLAMA,
    LLAMA "use-rope-scaling = yes\ngroup-query-attention = yes\nnum-query-groups = 2\n",
    LLAMA "add-qkv-bias = yes\nwindow-size = 2,0\n",
    LLAMA "position-embedding-type = yarn\nyarn-original-max-position-embeddings = 4\nrotary-scaling-factor = 4\n"
          "no-yarn-correction-range-round-to-int = yes\nyarn-beta-fast = 2\n",
    LLAMA "attn-temperature-beta = 1\nattn-temperature-floor = 2\n",
    SIZES "model = bert\napply-residual-connection-post-layernorm = yes\nopenai-gelu = yes\n",
    SIZES "model = bert\n",
    SIZES "model = t5\n",
    T5 "activation-func = relu\nlogit-multiplier = 0.25\n",
    T5 "glu-activation = geglu\nopenai-gelu = yes\nuntie-embeddings-and-output-weights = yes\n",
};
enum { BASES = sizeof bases / sizeof *bases };
enum format { HF, LEGACY, MCORE, TE, FORMATS };

/* Set *m to the model of the options.  Return false, with the reason in *why, if there is no such model. */
static bool make_model(struct meg_model_conf *m, const char *options, const char *more, struct meg_err *why)
{
    const struct meg_optgroup groups[] = { { "model", meg_model_opts, m }, { 0 } };
    struct meg_err e;

    *m = (struct meg_model_conf){ 0 };
    meg_opt_defaults(groups);
    if (meg_opt_apply(groups, options, "base", &e) < 0 || meg_opt_apply(groups, more, "change", &e) < 0)
        fail_msg("%s", e.msg);
    m->vocab_size = 11;
    return meg_model_conf_check(m, why) == 0;
}

static int export(enum format to, const struct ckpt_fixture *b, struct meg_err *e)
{
    static const enum meg_ckpt_names names[] = {
        [LEGACY] = MEG_CKPT_NAMES_LEGACY, [MCORE] = MEG_CKPT_NAMES_MCORE, [TE] = MEG_CKPT_NAMES_TE
    };

    meg_remove_tree("out", NULL);
    return to == HF ? export_hf(b, "out", e) : export_ranks(b, "out", 1, 1, names[to], e);
}

static bool is_refused(enum format to, const char *options)
{
    struct ckpt_fixture b = { 0 };
    bool is;

    make_model(&b.m, options, "", NULL);
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 1);
    is = export(to, &b, NULL) < 0;
    free_fixture(&b);
    return is;
}

/* ---- what a model computes ---- */

static void print_block(struct meg_str *s, const struct meg_block *block)
{
    meg_str_printf(s, "%s %d %s %g %d ", block->norm, block->residual_from_norm, block->post_norm, (double)block->scale,
                   block->is_parallel);
    if (block->type == &meg_attn_block) {
        const struct meg_attn_conf *c = block->conf;

        meg_str_printf(s, "%d %d %d %d %d %g %g %g %d %d %d %d %d %d %d %d", (int)c->a, (int)c->g, (int)c->d,
                       c->has_qkv_bias, c->has_proj_bias, c->scale, c->softcap, c->clip, c->softmax_type,
                       c->is_bidirectional, (int)c->buckets, c->qk_layernorm,
                       c->qk_layernorm ? (int)c->qk_norm_scope : 0, c->qk_layernorm && c->qk_norm_after_rope,
                       (int)c->window, c->rope);
    } else if (block->type == &meg_cross_attn_block) {
        const struct meg_attn_conf *c = block->conf;

        meg_str_printf(s, "%d %d %d %g", (int)c->a, (int)c->d, c->has_proj_bias, c->scale);
    } else {
        const struct meg_mlp_conf *c = block->conf;

        assert_ptr_equal(block->type, &meg_mlp_block);
        meg_str_printf(s, "%d %d %d %d", (int)c->f, c->is_gated, (int)c->act, c->has_bias);
        if (c->is_gated)
            meg_str_printf(s, " %g %g", (double)c->glu.limit, (double)c->glu.offset);
    }
    meg_str_printf(s, "\n");
}

/* Print the rotary tables at some positions. */
static void print_rope(struct meg_str *s, const struct meg_rope_conf *c)
{
    const size_t n = (size_t)(c->half * meg_rope_rows(c));
    float *table = meg_new(4 * n * sizeof *table);

    if (c->half) {
        meg_rope_fill(c, false, table, table + n);
        meg_rope_fill(c, true, table + 2 * n, table + 3 * n);
        meg_str_printf(s, "rope %d %d", (int)c->half, c->o.is_interleaved);
        if (c->o.is_scaled) /* short wavelengths of small heads are not scaled */
            meg_str_printf(s, " %g %g %g %d", c->o.scaling_factor, c->o.low_freq_factor, c->o.high_freq_factor,
                           (int)c->o.scaling_original);
        if (c->is_yarn)
            meg_str_printf(s, " %g %g %d", c->o.yarn_beta_fast, c->o.yarn_beta_slow, c->o.yarn_rounds);
        for (size_t i = 0; i < 4 * n; i++)
            meg_str_printf(s, " %g", (double)table[i]);
        meg_str_printf(s, "\n");
    }
    free(table);
}

/* Print all that affects the outputs of the model, from its description. */
static struct meg_str print_model(const struct meg_model_conf *m)
{
    struct meg_str s = { 0 };
    struct meg_model_desc d;

    meg_model_describe(&d, m);
    meg_str_printf(&s, "%d %d %u %d %d %d %d %d %d %.17g %d\n", (int)d.h, (int)d.v, d.inputs, (int)d.positions,
                   (int)d.first_position, (int)d.token_types, (int)d.norm, d.norm_has_weight, d.norm_has_bias,
                   d.norm_eps, d.is_untied);
    meg_str_printf(&s, "%.17g %d %d\n", d.embedding_multiplier, d.rounds_embedding_multiplier, d.has_embed_norm);
    for (int k = 0; k < MEG_ROPE_SETS; k++)
        print_rope(&s, &d.rope[k]);
    meg_str_printf(&s, "alibi %d\n", (int)d.alibi_heads);
    if (d.stack[0].rel_bias)
        meg_str_printf(&s, "bias %d %d\n", (int)d.rel_bias_buckets, (int)d.rel_bias_max_distance);
    for (int i = 0; i < d.nblocks; i++)
        print_block(&s, &d.block[i]);
    for (int64_t i = 0; i < d.nlayers; i++)
        meg_str_printf(&s, "%s %d %d\n", d.layer[i].prefix, d.layer[i].first, d.layer[i].n);
    for (int i = 0; i < d.nheads; i++) {
        const struct meg_lm_head_conf *c = d.head[i].conf;

        meg_str_printf(&s, "%s\n", d.loss[d.head[i].loss].name);
        if (d.head[i].type == &meg_lm_head)
            meg_str_printf(&s, "%d %d %d %.17g %.17g\n", c->has_bias, c->is_transformed,
                           c->is_transformed ? (int)c->act : 0, (double)c->scale, (double)c->softcap);
    }
    meg_model_desc_free(&d);
    return s;
}

/* ---- pairs of an option and a format ---- */

/*
 * Return the model that is read after an export of m.  Warnings of the exporter state the differences: BERT has one
 * activation, and a tied output layer of T5 that is not scaled is written as an untied one.
 */
static struct meg_model_conf expected_model(const struct meg_model_conf *m, enum format to)
{
    struct meg_model_conf x = *m;

    if (to == HF && m->family == MEG_FAMILY_BERT)
        x.openai_gelu = x.openai_gelu || x.bias_gelu_fusion;
    if (to == HF && m->family == MEG_FAMILY_T5)
        x.is_untied = x.is_untied || !(x.logit_multiplier > 0 && x.logit_multiplier < 1);
    return x;
}

static void check_read_back(const struct meg_model_conf *m, enum format to, const char *change)
{
    const struct meg_model_conf expected = expected_model(m, to);
    struct meg_ckpt *c = open_ok("out", MEG_UNSET);
    struct meg_str lost = { 0 }, want = print_model(&expected), got;
    struct ckpt_fixture b = { 0 };
    struct meg_err e;

    assert_int_equal(meg_ckpt_model_conf(c, &b.m, &e), 0);
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 2);
    got = print_model(&b.m);
    if (strcmp(got.s, want.s) != 0)
        fail_msg("format %d, %s: read as another model:\n%s\n%s", (int)to, change, got.s, want.s);
    if (ckpt_list_lost_options(&lost, &expected, &b.m) > 0 || load_f32_weights(c, &b.p, b.w, &e) < 0)
        fail_msg("format %d, %s: %s", (int)to, change, lost.s ? lost.s : e.msg);
    meg_ckpt_close(c);
    meg_str_free(&lost);
    meg_str_free(&want);
    meg_str_free(&got);
    free_fixture(&b);
}

static void check_nothing_written(void)
{
    DIR *d = opendir(".");

    for (struct dirent *f; (f = readdir(d));)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0)
            fail_msg("%s is left after a refusal", f->d_name);
    closedir(d);
}

/* The results of the changes of an option. */
struct outcome {
    int equal, changed, refused;
};

/*
 * Return whether a change of this option determines other options, or which of their values a format has: the family,
 * T5's --logit-multiplier, which depends on the width and on the tied output layer, BERT's --num-tokentypes, and the
 * window, which no type of Hugging Face has together with biases of all linear layers of a Llama.
 */
static bool changes_others(const char *option)
{
    static const char *const names[] = { "model", "hidden-size", "untie-embeddings-and-output-weights",
                                         "bert-no-binary-head", "disable-bias-linear" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(option, names[i]) == 0)
            return true;
    return false;
}

/* Options that are the same as others, which messages name. */
static const char *const same[][2] = {
    { "--use-rotary-position-embeddings yes", "--position-embedding-type rope" },
    { "--activation-func gelu-tanh", "" /* --openai-gelu, or the default */ },
    { "--activation-func squared-relu", "--squared-relu yes" },
    { "--gated-linear-unit yes", "--glu-activation geglu" },
};

/* Change an option of a model, and export the model in each format. */
static void try_change(struct outcome *o, const char *base, const struct meg_opt *row, const char *value)
{
    struct ckpt_fixture b = { 0 };
    char change[100], text[120];
    struct meg_err e;

    snprintf(change, sizeof change, "%s = %s\n", row->name, value);
    if (!make_model(&b.m, base, change, NULL))
        return;
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 1);
    snprintf(text, sizeof text, "--%s %s would be read as ", row->name, value);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strncmp(text, same[i][0], strlen(same[i][0])) == 0)
            snprintf(text, sizeof text, "%s would be read as ", same[i][1]);
    for (int to = 0; to < FORMATS; to++)
        if (export((enum format)to, &b, &e) == 0) {
            o->equal++;
            check_read_back(&b.m, (enum format)to, change);
        } else {
            o->refused++;
            check_nothing_written();
            assert_int_equal(e.code, MEG_EUSAGE);
            assert_true(strlen(e.msg) < 400);
            assert_contains(e.msg, "the model cannot be converted to | would be read as |; use --saver native");
            /* the most similar of Hugging Face's model types may differ from the model in other options */
            if (to != HF && !strstr(e.msg, text) && !changes_others(row->name) && !is_refused((enum format)to, base))
                fail_msg("format %d: '%s' is not in: %s", to, text, e.msg);
        }
    free_fixture(&b);
}

/* Values of the options that are texts. */
static const struct {
    const char *name, *value;
} texts[] = { { "embedding-multiplier", "sqrt" }, { "no-rope-freq", "[1]" }, { "rope-long-factors", "2,8" },
              { "rope-short-factors", "2,8" },    { "window-size", "3,0" },  { "window-attn-skip-freq", "[0]" },
              { "window-attn-skip-freq", "2" } };

/* Try other values of an option than that of the base. */
static void try_option(void (*try)(struct outcome *o, const char *base, const struct meg_opt *row, const char *value),
                       struct outcome *o, const char *base, const struct meg_opt *row)
{
    struct meg_model_conf m;
    char value[32], *words, *was, *save = NULL;
    const void *field = (const char *)&m + row->offset;

    make_model(&m, base, "", NULL);
    was = meg_opt_value(row, &m);
    switch (row->type) {
    case MEG_OPT_I64:
        snprintf(value, sizeof value, "%d", *(const int64_t *)field > 0 ? 2 * (int)*(const int64_t *)field : 3);
        try(o, base, row, value);
        break;
    case MEG_OPT_F64:
        meg_fmt_double(value, *(const double *)field > 0 ? *(const double *)field / 2 : 0.5);
        try(o, base, row, value);
        break;
    case MEG_OPT_BOOL: try(o, base, row, *(const bool *)field ? "no" : "yes"); break;
    case MEG_OPT_STORE_FALSE: try(o, base, row, *(const bool *)field ? "yes" : "no"); break;
    case MEG_OPT_ENUM:
        words = strdup(row->metavar);
        for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
            if (strcmp(w, was) != 0)
                try(o, base, row, w);
        free(words);
        break;
    case MEG_OPT_STR:
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            if (strcmp(row->name, texts[i].name) == 0)
                try(o, base, row, texts[i].value);
        break;
    default: break;
    }
    free(was);
}

static void every_option_is_kept_or_refused_by_name(void **state)
{
    /* options that only checkpoints of meg have */
    static const char native[] = "rotary-base-window rope-* yarn-attention-factor attn-temperature-*";
    int npairs = 0;

    (void)state;
    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        struct outcome o = { 0 };

        if (row->type == MEG_OPT_ALIAS || meg_opt_is_negated(row))
            continue;
        for (int i = 0; i < BASES; i++)
            try_option(try_change, &o, bases[i], row);
        if (o.equal == 0 && !meg_opt_is_listed(native, row->name, NULL))
            fail_msg("no format has --%s", row->name);
        npairs += o.equal + o.refused;
    }
    assert_true(npairs > 500);
}

/* ---- pairs of an option and a family ---- */

/* Change an option of a model, and compare the models.  A model that is refused counts as refused. */
static void try_effect(struct outcome *o, const char *base, const struct meg_opt *row, const char *value)
{
    struct meg_str before, after;
    struct meg_model_conf m, changed;
    char change[100];
    struct meg_err e;

    snprintf(change, sizeof change, "%s = %s\n", row->name, value);
    if (!make_model(&m, base, "", NULL))
        return;
    if (!make_model(&changed, base, change, &e)) {
        o->refused++;
        if (!strstr(e.msg, row->name))
            fail_msg("%s: '%s' does not name the option", change, e.msg);
        return;
    }
    before = print_model(&m);
    after = print_model(&changed);
    o->equal += strcmp(before.s, after.s) == 0;
    o->changed += strcmp(before.s, after.s) != 0;
    meg_str_free(&before);
    meg_str_free(&after);
}

/* Options that have effects only with others. */
static const char *const enablers[] = { "", "disable-bias-linear = yes\n", "no-bias-gelu-fusion = yes\n",
                                        "position-embedding-type = rope\nuse-rope-scaling = yes\n",
                                        "position-embedding-type = rope\nqk-layernorm = yes\n" };

static void every_option_has_an_effect_or_is_refused_by_the_family(void **state)
{
    static const char *const families[] = { "model = gpt\n", "model = bert\n", "model = t5\n" };

    (void)state;
    for (int f = 0; f < 3; f++)
        for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
            struct outcome o = { 0 };

            if (row->type == MEG_OPT_ALIAS || meg_opt_is_negated(row) || strcmp(row->name, "model") == 0 ||
                ckpt_is_for_training(row->name))
                continue;
            for (size_t i = 0; i < BASES * sizeof enablers / sizeof *enablers; i++) {
                char base[1000];

                snprintf(base, sizeof base, "%s%s%s", bases[i % BASES], families[f], enablers[i / BASES]);
                try_option(try_effect, &o, base, row);
            }
            if (o.changed == 0 && o.equal > 0)
                fail_msg("%s--%s has no effect, but is not refused", families[f], row->name);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_option_is_kept_or_refused_by_name),
                                        cmocka_unit_test(every_option_has_an_effect_or_is_refused_by_the_family) };

    omp_set_num_threads(1); /* the models are small */
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
