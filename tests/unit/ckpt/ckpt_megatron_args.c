/*
 * Settings in the args of Megatron's checkpoints.  Settings that change the output of the model are refused by name, as
 * are unknown settings that may change it.  All others are accepted.
 *
 * tests/data/megatron_args_*.json have the args that Megatron's own parse_args and validate_args return, in Megatron
 * Core 0.10 with GPT-2 settings, and in 0.14 and 0.20 with Llama settings.  They also have the args of ModelOpt and the
 * values that training adds.  A Python global is {"global": "module.name"}; an object created by class(N) is
 * {"call": "module.class", "value": N}.
 */
#include <jansson.h>

#include "ckpt/megatron/megatron.h"
#include "io/json.h"
#include "ckpt_pt_builder.h"

static char root[4096]; /* the repository, in which the tests start */

static int enter(void **state)
{
    return getcwd(root, sizeof root) ? enter_folder(state) : -1;
}

/* ---- args from JSON ---- */

static void put_class(struct meg_pickle_writer *p, const char *full)
{
    const char *dot = strrchr(full, '.');
    char *module = meg_strndup(full, (size_t)(dot - full));

    meg_pickle_put_global(p, module, dot + 1);
    free(module);
}

/* Write a JSON value as a pickle of protocol 2; arrays become tuples. */
static void put_value(struct meg_pickle_writer *p, const json_t *v)
{
    const json_t *class = json_object_get(v, "call"), *item;
    size_t i;

    switch (json_typeof(v)) {
    case JSON_NULL: meg_pickle_put_none(p); break;
    case JSON_TRUE:
    case JSON_FALSE: meg_pickle_put_bool(p, json_is_true(v)); break;
    case JSON_INTEGER: meg_pickle_put_int(p, json_integer_value(v)); break;
    case JSON_REAL: meg_pickle_put_float(p, json_real_value(v)); break;
    case JSON_STRING: meg_pickle_put_str(p, json_string_value(v)); break;
    case JSON_ARRAY:
        meg_str_add(&p->s, "(", 1);
        json_array_foreach(v, i, item) put_value(p, item);
        meg_str_add(&p->s, "t", 1);
        break;
    case JSON_OBJECT:
        if (json_object_get(v, "bytes")) { /* SHORT_BINBYTES */
            meg_str_printf(&p->s, "C%c%s", (int)json_string_length(json_object_get(v, "bytes")),
                           json_string_value(json_object_get(v, "bytes")));
            break;
        }
        put_class(p, json_string_value(class ? class : json_object_get(v, "global")));
        if (class) {
            meg_pickle_put_int(p, json_integer_value(json_object_get(v, "value")));
            meg_str_add(&p->s, "\x85R", 2); /* class(value) */
        }
    }
}

/* Write at/mp_rank_00/model_optim_rng.pt with args, and weights of a Llama if swiglu is true, else of a GPT-2. */
static void write_with_args(const char *at, const json_t *args)
{
    const bool is_llama = json_is_true(json_object_get(args, "swiglu"));
    struct ckpt_fixture b = { .m = small_gpt_conf(2, 64) };
    struct meg_str file = { 0 };
    struct pt_builder f = { 0 };
    struct meg_err e;
    const char *name;
    const json_t *v;

    b.m.attn.a = b.m.attn.g = 4;
    b.m.attn.d = 16;
    b.m.max_position_embeddings = 64;
    b.m.vocab_size = 128;
    if (is_llama) {
        b.m.position_embedding_type = MEG_POSITION_ROPE;
        b.m.normalization = MEG_NORM_RMS;
        b.m.swiglu = b.m.is_untied = true;
        b.m.has_bias = false;
        b.m.mlp.f = 128;
        b.m.group_query_attention = true;
        b.m.attn.g = 2;
    }
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 1);

    meg_pickle_begin(&f.pickle);
    meg_pickle_put_dict_begin(&f.pickle);
    meg_pickle_put_str(&f.pickle, "args");
    meg_pickle_put_namespace_begin(&f.pickle);
    json_object_foreach((json_t *)args, name, v)
    {
        meg_pickle_put_str(&f.pickle, name);
        put_value(&f.pickle, v);
    }
    meg_pickle_put_namespace_end(&f.pickle);
    meg_pickle_put_str(&f.pickle, "checkpoint_version");
    meg_pickle_put_float(&f.pickle, 3);
    meg_pickle_put_str(&f.pickle, "model");
    meg_pickle_put_dict_begin(&f.pickle);
    for (int i = 0; i < b.p.n; i++)
        pt_add_param(&f, &b, b.p.row[i].name, b.p.row[i].name);
    meg_pickle_put_dict_end(&f.pickle);
    meg_str_printf(&file, "%s/mp_rank_00", at);
    assert_int_equal(meg_mkdirs(file.s, &e), 0);
    meg_str_printf(&file, "/model_optim_rng.pt");
    pt_end(&f, file.s);
    meg_str_free(&file);
    free_fixture(&b);
}

/* Write and open a checkpoint with args, to which name = value (JSON) is added unless name is NULL. */
static int open_with_args(const json_t *args, const char *name, const char *value, struct meg_err *e)
{
    json_t *changed = json_deep_copy(args);
    struct meg_ckpt *c = NULL;
    int r;

    if (name) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);

        if (!v)
            fail_msg("%s: '%s' is not JSON", name, value);
        json_object_set_new(changed, name, v);
    }
    write_with_args("ckpt", changed);
    json_decref(changed);
    r = meg_ckpt_open(&c, "ckpt", MEG_UNSET, e);
    meg_ckpt_close(c);
    return r;
}

static json_t *args_of(const char *release)
{
    struct meg_str path = { 0 };
    json_t *args;

    meg_str_printf(&path, "%s/tests/data/megatron_args_%s.json", root, release);
    args = json_load_file(path.s, 0, NULL);
    if (!args)
        fail_msg("%s cannot be read", path.s);
    meg_str_free(&path);
    return args;
}

static json_t *minimal_args(void)
{
    return json_pack("{s:i,s:i,s:i,s:i}", "num_layers", 2, "hidden_size", 64, "num_attention_heads", 4,
                     "max_position_embeddings", 64);
}

static void accept(const json_t *args, const char *name, const char *value)
{
    struct meg_err e;

    if (open_with_args(args, name, value, &e) < 0)
        fail_msg("%s = %s is refused: %s", name ? name : "args", name ? value : "as they are", e.msg);
}

/* Check that args with name = value are refused, and that the message names the setting and the file. */
static void refuse(const json_t *args, const char *name, const char *value, const char *message)
{
    struct meg_str want = { 0 };
    struct meg_err e;

    meg_str_printf(&want, "%s", name);
    if (open_with_args(args, name, value, &e) != MEG_EFORMAT)
        fail_msg("%s = %s is not refused", name, value);
    for (char *p = want.s; !strstr(e.msg, name) && *p; p++) /* options are named with dashes */
        if (*p == '_')
            *p = '-';
    assert_contains(e.msg, want.s);
    assert_contains(e.msg, "ckpt/mp_rank_00/model_optim_rng.pt");
    assert_contains(e.msg, message);
    meg_str_free(&want);
}

/* ---- tests ---- */

static void complete_args_of_each_release_load(void **state)
{
    static const char *const release[] = { "0.10", "0.14", "0.20" };
    static const size_t least[] = { 380, 500, 840 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        json_t *args = args_of(release[i]);

        assert_true(json_object_size(args) > least[i]);
        accept(args, NULL, NULL);
        refuse(args, "multi_latent_attention", "true", "unsupported settings");
        json_decref(args);
    }
}

/* Settings of TransformerConfig and args that change the output, with values that do not (neutral) and that do. */
static const struct pair {
    const char *name, *neutral[3], *changed[2];
} pairs[] = {
    { "num_experts", { "null" }, { "8", "1" } },
    { "num_moe_experts", { "null" }, { "8" } },
    { "multi_latent_attention", { "false" }, { "true" } },
    { "experimental_attention_variant", { "null" }, { "\"gdn\"", "\"dsa\"" } },
    { "linear_attention_type", { "null" }, { "\"gated_delta_net\"" } },
    { "linear_attention_freq", { "null", "[0,0]" }, { "4", "[1,0]" } },
    { "attention_output_gate", { "false" }, { "true" } },
    { "window_size", { "null", "[-1,-1]", "[-1,0]" }, { "\"8,0\"" } },
    { "window_attn_skip_freq", { "null", "[0,0]" }, { "\"[1,0]\"" } },
    { "qk_l2_norm", { "false" }, { "true" } },
    { "export_qk_l2_norm", { "false" }, { "true" } },
    { "no_rope_freq", { "null" }, { "\"0,1\"" } },
    { "rope_type", { "null", "\"rope\"" }, { "\"yarn\"" } },
    { "enable_gpt_oss", { "false" }, { "true" } },
    { "mrope_section", { "null" }, { "[2,3,3]" } },
    { "layernorm_zero_centered_gamma", { "false" }, { "true" } },
    { "apply_residual_connection_post_layernorm", { "false" }, { "true" } },
    { "enable_mhc_connections", { "false" }, { "true" } },
    { "activation_func", { "null" }, { "{\"global\": \"torch._C._nn.silu\"}" } },
    { "use_mup", { "false" }, { "true" } },
    { "mup_width_mult", { "1.0", "1" }, { "4.0" } },
    { "mup_base_hidden_size", { "null" }, { "16" } },
    { "mup_embedding_mult", { "1.0" }, { "12.0", "0" } },
    { "mup_output_mult", { "1.0" }, { "0.25" } },
    { "mup_base_head_dim", { "null" }, { "64.0" } },
    { "mup_attn_scale_power", { "1.0" }, { "0.5" } },
    { "is_hybrid_model", { "false" }, { "true" } },
    { "hybrid_layer_pattern", { "null" }, { "\"M*-M\"" } },
    { "hybrid_override_pattern", { "null" }, { "\"M*-M\"" } },
    { "hybrid_attention_ratio", { "0.0" }, { "0.5" } },
    { "hybrid_mlp_ratio", { "0.0" }, { "0.5" } },
    { "heterogeneous_layers_config_path", { "null" }, { "\"/data/layers.json\"" } },
    { "heterogeneous_layers_config_encoded_json", { "null" }, { "\"{}\"" } },
    { "heterogeneous_block_specs", { "false" }, { "true" } },
    { "mtp_num_layers", { "null", "0" }, { "1" } },
    { "mtp_hybrid_override_pattern", { "null" }, { "\"M*\"" } },
    { "export_num_medusa_heads", { "0" }, { "2" } },
    { "export_num_eagle_layers", { "0" }, { "1" } },
    { "retro_add_retriever", { "false" }, { "true" } },
    { "spec", { "null", "[\"local\"]" }, { "[\"my.module\",\"layer\"]" } },
    { "position_embedding_type", { "\"learned_absolute\"" }, { "\"mrope\"", "\"none\"" } },
    { "normalization", { "\"LayerNorm\"" }, { "\"DeepNorm\"" } },
};
enum { NPAIRS = sizeof pairs / sizeof pairs[0] };

static void settings_that_change_the_model_are_refused_by_name(void **state)
{
    json_t *args = minimal_args();

    (void)state;
    assert_true(NPAIRS >= 40);
    for (int i = 0; i < NPAIRS; i++)
        for (int k = 0; k < 2 && pairs[i].changed[k]; k++)
            refuse(args, pairs[i].name, pairs[i].changed[k], "");
    json_decref(args);
}

/* File k has neutral value k of each setting, or null if the setting has fewer neutral values. */
static void neutral_settings_are_accepted(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        json_t *args = minimal_args();

        for (int i = 0; i < NPAIRS; i++)
            json_object_set_new(args, pairs[i].name,
                                json_loads(pairs[i].neutral[k] ? pairs[i].neutral[k] : "null", JSON_DECODE_ANY, NULL));
        accept(args, NULL, NULL);
        json_decref(args);
    }
}

static bool is_model_option(const char *name)
{
    char buf[64];

    for (const struct meg_opt *row = meg_model_opts; row->name; row++) {
        const char *arg = ckpt_arg_name(buf, row);

        if (arg && strcmp(arg, name) == 0)
            return true;
    }
    return strcmp(name, "openai_gelu") == 0;
}

/* Set all args of a release that are false to true, except the settings above and the options of the model. */
static void switches_without_effect_are_accepted(void **state)
{
    static const char *const release[] = { "0.10", "0.14", "0.20" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        json_t *args = args_of(release[i]);
        const char *name;
        json_t *v;
        int n = 0;

        json_object_foreach(args, name, v)
        {
            bool is_pair = is_model_option(name);

            for (int k = 0; k < NPAIRS; k++)
                is_pair = is_pair || strcmp(pairs[k].name, name) == 0;
            if (!is_pair && json_is_false(v) && ++n)
                json_object_set_new(args, name, json_true());
        }
        assert_true(n > 80);
        accept(args, NULL, NULL);
        json_decref(args);
    }
}

/* An unknown setting is accepted if it is off, or if its name or value shows that it is not about the model. */
static void unknown_settings_are_accepted_only_when_off(void **state)
{
    static const struct {
        const char *name, *value;
    } harmless[] = {
        { "twist", "false" },
        { "twist", "null" },
        { "twist", "0.0" },
        { "twist", "\"\"" },
        { "twist", "[]" },
        { "twist", "\"/data/twist.json\"" },
        { "twist", "{\"global\": \"torch.bfloat16\"}" },
        { "twist", "{\"call\": \"pathlib.PosixPath\", \"value\": 0}" },
        { "my_output_dir", "\"out\"" },
        { "slurm_job_id", "12345" },
        { "new_optimizer_beta", "0.95" },
        { "cuda_stream_count", "4" },
        { "moe_new_router", "\"best\"" },
        { "_private_seed", "3" },
    };
    json_t *args = minimal_args();

    (void)state;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        accept(args, harmless[i].name, harmless[i].value);
    refuse(args, "twist", "0.5", "twist = 0.5 (unknown setting)|remove it from args");
    refuse(args, "twist", "true", "twist = True");
    refuse(args, "lora_rank", "8", "lora_rank = 8 (unknown setting)");
    refuse(args, "twist", "\"left\"", "twist = left");
    refuse(args, "twist", "[1,2]", "twist = (1,2)");
    refuse(args, "twist", "{\"bytes\": \"left\"}", "twist = a value of a different type (unknown setting)");
    refuse(args, "twist", "{\"call\": \"megatron.core.enums.Twist\", \"value\": 1}",
           "an object of megatron.core.enums.Twist");
    refuse(args, "twist", "\"a\\nmeg-convert: forged\"", "a?meg-convert: forged");
    json_decref(args);
}

/* If one of these args is true, the model has the tanh approximation (bias_gelu_fusion), otherwise exact GELU. */
static void gelu_is_exact_unless_an_option_selects_tanh(void **state)
{
    static const char *const tanh_form[] = { "bias_gelu_fusion", "openai_gelu", "use_te_activation_func",
                                             "use_transformer_engine_op_fuser", NULL };

    (void)state;
    for (int i = 0; i < 5; i++) {
        json_t *args = minimal_args();
        struct meg_model_conf m;
        struct meg_ckpt *c;
        struct meg_err e;

        json_object_set_new(args, "bias_gelu_fusion", json_false());
        if (tanh_form[i])
            json_object_set_new(args, tanh_form[i], json_true());
        write_with_args("ckpt", args);
        json_decref(args);
        c = open_ok("ckpt", MEG_UNSET);
        assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
        assert_int_equal(m.bias_gelu_fusion, tanh_form[i] != NULL);
        meg_ckpt_close(c);
    }
}

static void all_refused_settings_are_named_at_once(void **state)
{
    json_t *args = minimal_args();

    (void)state;
    json_object_set_new(args, "use_mup", json_true());
    json_object_set_new(args, "qk_l2_norm", json_true());
    refuse(args, "mup_output_mult", "0.25",
           "use_mup = True (maximal|qk_l2_norm = True (normalized|mup_output_mult = 0.25");
    json_decref(args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(complete_args_of_each_release_load),
        cmocka_unit_test(settings_that_change_the_model_are_refused_by_name),
        cmocka_unit_test(neutral_settings_are_accepted),
        cmocka_unit_test(switches_without_effect_are_accepted),
        cmocka_unit_test(unknown_settings_are_accepted_only_when_off),
        cmocka_unit_test(gelu_is_exact_unless_an_option_selects_tanh),
        cmocka_unit_test(all_refused_settings_are_named_at_once),
    };
    return cmocka_run_group_tests(tests, enter, leave_folder);
}
