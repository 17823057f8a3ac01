/* Native checkpoints: save, load, replace, remove; error messages for damaged checkpoints. */
#include <sys/stat.h>

#include "ckpt_fixture.h"

#include <dirent.h>

static void round_trip_is_bit_identical(void **state)
{
    struct ckpt_fixture a, b;
    struct meg_ckpt *c;
    struct meg_model_conf m;
    struct meg_tok_conf tok = { .vocab_size = MEG_UNSET };
    struct meg_str s;
    struct meg_err e;

    (void)state;
    make_fixture(&a, 2, 8, 1);
    make_fixture(&b, 2, 8, 2);
    a.w[a.p.row[0].offset] = __builtin_nanf("7");
    save_ok(&a, "back", 100, 0, -1);
    c = open_ok("back", MEG_UNSET);
    assert_true(meg_ckpt_is_native(c));
    assert_int_equal(meg_ckpt_iteration(c), 100);
    assert_string_equal(meg_ckpt_path(c), "back/iter_0000100");
    assert_int_equal(meg_ckpt_vocab_size(c), 11);
    assert_int_equal(meg_ckpt_eod(c), 3);
    assert_int_equal(json_integer_value(json_object_get(meg_ckpt_run_state(c), "consumed")), 40);
    assert_true(json_real_value(json_object_get(meg_ckpt_run_state(c), "x")) == 0.1);
    assert_int_equal(meg_ckpt_model_conf(c, &m, &e), 0);
    assert_int_equal(m.num_layers, 2);
    assert_int_equal(m.mlp.f, 32);
    assert_int_equal(m.vocab_size, 11);
    if (load_fixture(&b, c, &e) < 0 || meg_ckpt_verify(c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    assert_memory_equal(a.exp_avg, b.exp_avg, (size_t)a.p.flat_numel * 4);
    assert_memory_equal(a.exp_avg_sq, b.exp_avg_sq, (size_t)a.p.flat_numel * 4);
    /* the tokenizer's files are the copies in the checkpoint */
    meg_ckpt_tok_conf(c, &tok);
    assert_string_equal(tok.type, "GPT2BPETokenizer");
    s = read_bytes(tok.merge_file);
    assert_string_equal(s.s, "a b\n");
    meg_str_free(&s);
    s = read_bytes(tok.tokenizer_model);
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.s, "\n\0x", 3);
    meg_str_free(&s);
    meg_ckpt_close(c);
    /* open one checkpoint by its own directory */
    c = open_ok("back/iter_0000100", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 100);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

static void opens_the_newest_complete_iteration_without_a_tracker(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    for (int i = 8; i <= 10; i++)
        save_ok(&b, "lost", i, 0, -1);
    put_file("lost/latest_checkpointed_iteration.txt", "\n\t  8 \v\r\n", 9); /* Megatron strips whitespace */
    c = open_ok("lost", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 8);
    meg_ckpt_close(c);
    assert_int_equal(unlink("lost/latest_checkpointed_iteration.txt"), 0);
    assert_true(meg_ckpt_exists("lost"));
    c = open_ok("lost", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 10);
    meg_ckpt_close(c);
    c = open_ok("lost", 8);
    assert_int_equal(meg_ckpt_iteration(c), 8);
    meg_ckpt_close(c);
    /* an incomplete checkpoint is skipped */
    assert_int_equal(unlink("lost/iter_0000010/manifest.json"), 0);
    c = open_ok("lost", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 9);
    meg_ckpt_close(c);
    /* if no checkpoint is complete, none is opened */
    assert_int_equal(unlink("lost/iter_0000008/manifest.json"), 0);
    assert_int_equal(unlink("lost/iter_0000009/manifest.json"), 0);
    assert_true(meg_ckpt_exists("lost"));
    assert_int_equal(meg_ckpt_open(&c, "lost", MEG_UNSET, &e), MEG_ENOENT);
    assert_contains(e.msg, "no iteration has a manifest.json|--ckpt-step");
    free_fixture(&b);
}

static void keep_last_removes_only_older_iterations(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    assert_false(meg_ckpt_exists("keep"));
    for (int i = 10; i <= 50; i += 10)
        save_ok(&b, "keep", i, 2, 10);
    assert_true(meg_ckpt_exists("keep"));
    assert_int_equal(access("keep/iter_0000010", F_OK), 0); /* the iteration that was loaded */
    assert_int_equal(access("keep/iter_0000020", F_OK), -1);
    assert_int_equal(access("keep/iter_0000030", F_OK), -1);
    assert_int_equal(access("keep/iter_0000040", F_OK), 0);
    save_ok(&b, "keep", 45, 1, -1); /* newer checkpoints are not removed */
    assert_int_equal(access("keep/iter_0000010", F_OK), -1);
    assert_int_equal(access("keep/iter_0000040", F_OK), -1);
    assert_int_equal(access("keep/iter_0000050", F_OK), 0);
    c = open_ok("keep", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 45);
    meg_ckpt_close(c);
    c = open_ok("keep", 50);
    assert_int_equal(meg_ckpt_iteration(c), 50);
    meg_ckpt_close(c);
    assert_int_equal(meg_ckpt_open(&c, "keep", 7, &e), MEG_ENOENT);
    assert_contains(e.msg, "keep/iter_0000007|45, 50");
    assert_int_equal(meg_ckpt_mark_done("keep", true, &e), 0);
    assert_int_equal(access("keep/done", F_OK), 0);
    assert_int_equal(meg_ckpt_mark_done("keep", false, &e), 0);
    assert_int_equal(meg_ckpt_mark_done("keep", false, &e), 0);
    assert_int_equal(access("keep/done", F_OK), -1);
    free_fixture(&b);
}

#define LIST "meg-commit 1 iter_0000010.tmp.1.h\niter_0000010\titer_0000010.tmp.1.h\n"

static int count_in(const char *dir)
{
    DIR *d = opendir(dir);
    int n = -2;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void removes_leftovers_of_a_killed_save(void **state)
{
    struct ckpt_fixture a, b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    save_ok(&a, "killed", 10, 0, -1);
    /*
     * the state after a save that replaced iteration 10 without renameat2(RENAME_EXCHANGE), and was killed between the
     * commit and the rename
     */
    assert_int_equal(rename("killed/iter_0000010", "killed/iter_0000010.tmp.1.h"), 0);
    put_file("killed/iter_0000010.commit", LIST, strlen(LIST));
    /* the state after a save that was killed while it wrote the files of iteration 15 */
    assert_int_equal(meg_mkdirs("killed/iter_0000015.tmp.1.h", &e), 0);
    put_file("killed/iter_0000015.tmp.1.h/model-0-embedding.safetensors", "x", 1);
    /* the states after a run that was killed while it wrote the tracker or `done` */
    put_file("killed/latest_checkpointed_iteration.txt.tmp.1.h", "1", 1);
    put_file("killed/done.tmp.1.h", "", 0);
    c = open_ok("killed", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 10);
    if (load_fixture(&b, c, &e) < 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    meg_ckpt_close(c);
    save_ok(&a, "killed", 20, 0, -1);
    assert_int_equal(access("killed/iter_0000010", F_OK), 0);
    assert_int_equal(count_in("killed"), 3); /* two checkpoints and the tracker */
    /* save the same iteration again */
    fill_params(b.w, &b.p, 9);
    save_ok(&b, "killed", 20, 0, -1);
    assert_int_equal(count_in("killed"), 3);
    c = open_ok("killed", MEG_UNSET);
    assert_int_equal(load_f32_weights(c, &a.p, a.w, &e), 0);
    assert_memory_equal(a.w, b.w, (size_t)a.p.flat_numel * 4);
    meg_ckpt_close(c);
    free_fixture(&a);
    free_fixture(&b);
}

static void names_the_chunk_of_a_flipped_bit(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;
    struct meg_str s;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    free(b.w);
    meg_params_free(&b.p);
    b.m.vocab_size = 530000; /* a word embedding of 17 MB has two chunks with checksums */
    meg_model_params(&b.p, &b.m, &meg_mesh_one);
    b.w = new_params(&b.p, 1);
    {
        const struct meg_optgroup groups[] = { { "model", meg_model_opts, &b.m }, { 0 } };
        struct meg_str options = { 0 };
        struct meg_ckpt_save_args save = { .dir = "flip",
                                           .iteration = MEG_CKPT_RELEASE,
                                           .mesh = &meg_mesh_one,
                                           .model = &b.m,
                                           .params = &b.p,
                                           .weights = { .data = b.w } };
        meg_opt_dump(groups, &options);
        save.options = options.s;
        assert_int_equal(meg_ckpt_save(&save, &e), 0);
        meg_str_free(&options);
    }
    s = read_bytes("flip/release/model-0-embedding.safetensors");
    flip_byte("flip/release/model-0-embedding.safetensors", s.n - 1);
    meg_str_free(&s);
    c = open_ok("flip", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), MEG_CKPT_RELEASE);
    assert_int_equal(load_f32_weights(c, &b.p, b.w, &e), MEG_EFORMAT);
    assert_contains(e.msg, "flip/release/model-0-embedding.safetensors|embedding.word_embeddings.weight|chunk "
                           "2 of 2|checksum");
    assert_int_equal(meg_ckpt_verify(c, &e), MEG_EFORMAT);
    /* without optimizer state */
    {
        const struct meg_ckpt_shard slot = { .name = "exp_avg", .data = b.w };
        assert_int_equal(meg_ckpt_load(c, &b.p, &meg_mesh_one, &slot, 1, &e), MEG_EFORMAT);
        assert_contains(e.msg, "16 missing: optimizer.state.exp_avg.embedding.word_embeddings.weight, "
                               "|optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc2.bias|--no-load-optim");
    }
    meg_ckpt_close(c);
    free_fixture(&b);
}

/* Load the complete model as each of n ranks; return how many ranks fail, and set *e to the last error. */
static int count_refusals(struct ckpt_fixture *b, const struct meg_ckpt *c, int n, struct meg_err *e)
{
    struct meg_comm world = meg_comm_self;
    struct meg_mesh mesh = meg_mesh_one;
    const struct meg_ckpt_shard slot[] = { { .data = b->w },
                                           { .name = "exp_avg", .data = b->exp_avg },
                                           { .name = "exp_avg_sq", .data = b->exp_avg_sq } };
    int refusals = 0;

    mesh.world = &world;
    world.size = n;
    for (world.rank = 0; world.rank < n; world.rank++) {
        struct meg_err mine;
        const int r = meg_ckpt_load(c, &b->p, &mesh, slot, 3, &mine);

        if (r == 0)
            continue;
        assert_int_equal(r, MEG_EFORMAT);
        *e = mine;
        refusals++;
    }
    return refusals;
}

/* Exactly one of several ranks verifies each tensor of the weights and the optimizer state. */
static void each_tensor_is_verified_by_one_rank(void **state)
{
    struct ckpt_fixture b;
    json_t *manifest, *t;
    const char *name;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "verify", 1, 0, -1);
    manifest = json_load_file("verify/iter_0000001/manifest.json", 0, NULL);
    assert_non_null(manifest);
    assert_int_equal(json_object_size(json_object_get(manifest, "tensors")), 3 * b.p.n);
    json_object_foreach(json_object_get(manifest, "tensors"), name, t)
    {
        const char *file = json_string_value(json_object_get(t, "file"));
        const size_t at = (size_t)json_integer_value(json_object_get(t, "offset"));
        struct meg_ckpt *c = open_ok("verify", MEG_UNSET);
        char path[200], message[200];
        struct meg_err e;

        snprintf(path, sizeof path, "verify/iter_0000001/%s", file);
        snprintf(message, sizeof message, "%s: tensor %s, chunk 1 of |checksum|--ckpt-step", file, name);
        assert_int_equal(count_refusals(&b, c, 3, &e), 0);
        meg_ckpt_close(c);
        flip_byte(path, at);
        c = open_ok("verify", MEG_UNSET);
        for (int ranks = 1; ranks <= 3; ranks++) {
            assert_int_equal(count_refusals(&b, c, ranks, &e), 1);
            assert_contains(e.msg, message);
        }
        meg_ckpt_close(c);
        flip_byte(path, at);
    }
    json_decref(manifest);
    free_fixture(&b);
}

/* Threads verify the tensors in any order, but the message does not depend on it. */
static void of_several_damaged_tensors_the_first_is_named(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    json_t *manifest, *t;
    const char *name;
    struct meg_err first, e;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "damaged", 1, 0, -1);
    manifest = json_load_file("damaged/iter_0000001/manifest.json", 0, NULL);
    assert_non_null(manifest);
    c = open_ok("damaged", MEG_UNSET);
    json_object_foreach(json_object_get(manifest, "tensors"), name, t)
    {
        char path[200];

        snprintf(path, sizeof path, "damaged/iter_0000001/%s", json_string_value(json_object_get(t, "file")));
        flip_byte(path, (size_t)json_integer_value(json_object_get(t, "offset")));
    }
    assert_int_equal(count_refusals(&b, c, 1, &first), 1);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(count_refusals(&b, c, 1, &e), 1);
        assert_string_equal(e.msg, first.msg);
    }
    meg_ckpt_close(c);
    json_decref(manifest);
    free_fixture(&b);
}

static void refuses_changed_metadata_files(void **state)
{
    static const char *const name[] = { "state.json", "merges.txt", "model.safetensors.index.json" };
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char path[100];

        save_ok(&b, "small", 1, 0, -1);
        snprintf(path, sizeof path, "small/iter_0000001/%s", name[i]);
        flip_byte(path, 2);
        assert_int_equal(meg_ckpt_open(&c, "small", MEG_UNSET, &e), MEG_EFORMAT);
        assert_contains(e.msg, path);
        assert_contains(e.msg, "checksum");
    }
    save_ok(&b, "small", 1, 0, -1);
    put_file("small/iter_0000001/state.json", "{}", 2);
    assert_int_equal(meg_ckpt_open(&c, "small", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "size is 2 bytes, but manifest.json has");
    save_ok(&b, "small", 1, 0, -1);
    assert_int_equal(unlink("small/iter_0000001/manifest.json"), 0);
    assert_int_equal(meg_ckpt_open(&c, "small", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "no manifest.json");
    put_file("small/iter_0000001/manifest.json", "{\"format\":\"meg checkpoint\",\"version\":2}", 39);
    assert_int_equal(meg_ckpt_open(&c, "small", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "version 2");
    put_file("small/latest_checkpointed_iteration.txt", "soon\n", 5);
    assert_int_equal(meg_ckpt_open(&c, "small", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "latest_checkpointed_iteration.txt|'soon'|iteration number");
    assert_int_equal(meg_ckpt_open(&c, "nowhere", MEG_UNSET, &e), MEG_ENOENT);
    free_fixture(&b);
}

static void refuses_a_truncated_tensor_file(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;
    struct meg_str s;
    char message[80];

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "cut", 1, 0, -1);
    s = read_bytes("cut/iter_0000001/optim-2-head.safetensors");
    put_file("cut/iter_0000001/optim-2-head.safetensors", s.s, s.n - 5);
    c = open_ok("cut", MEG_UNSET); /* the weights are complete */
    assert_int_equal(load_f32_weights(c, &b.p, b.w, &e), 0);
    assert_int_equal(load_fixture(&b, c, &e), MEG_EFORMAT);
    meg_ckpt_close(c);
    snprintf(message, sizeof message, "optim-2-head.safetensors|size is %zu bytes|requires %zu", s.n - 5, s.n);
    assert_contains(e.msg, message);
    meg_str_free(&s);
    free_fixture(&b);
}

static void truncate_file(const char *path)
{
    assert_int_equal(truncate(path, 100), 0);
}

static void damage_file(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    flip_byte(path, (size_t)st.st_size - 4);
}

static void remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void empty_file(const char *path)
{
    put_file(path, "?", 1);
}

/* Iterations 5, 10 and 15 are saved; then a file of 15, or the tracker, is damaged. */
static void a_damaged_iteration_suggests_an_older_one(void **state)
{
    static const struct {
        const char *file, *too; /* a second file to truncate, or NULL */
        void (*harm)(const char *path);
        const char *message;
    } cases[] = {
        { "manifest.json", NULL, remove_file, "--ckpt-step 10" },
        { "state.json", NULL, damage_file, "--ckpt-step 10" },
        { "model-0-embedding.safetensors", NULL, truncate_file, "--ckpt-step 10" },
        { "model-0-embedding.safetensors", NULL, remove_file, "--ckpt-step 10" },
        { "model-2-head.safetensors", NULL, damage_file, "checksum|--ckpt-step 10" },
        { "optim-2-head.safetensors", NULL, damage_file, "checksum|--ckpt-step 10" },
        { "state.json", "old/iter_0000010/model-2-head.safetensors", damage_file, "--ckpt-step 5" },
        { "../latest_checkpointed_iteration.txt", NULL, empty_file, "expected an iteration|--ckpt-step 15" },
    };
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture a, b;

    (void)state;
    make_fixture(&a, 1, 8, 1);
    make_fixture(&b, 1, 8, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[100];

        meg_remove_tree("old", NULL);
        for (int it = 5; it <= 15; it += 5)
            save_ok(&a, "old", it, 0, -1);
        snprintf(path, sizeof path, "old/iter_0000015/%s", cases[i].file);
        cases[i].harm(path);
        if (cases[i].too)
            truncate_file(cases[i].too);
        if (meg_ckpt_open(&c, "old", MEG_UNSET, &e) == 0) {
            assert_true(load_fixture(&b, c, &e) < 0);
            meg_ckpt_close(c);
        }
        assert_contains(e.msg, cases[i].message);
        assert_contains(e.msg, "to load iteration");
    }
    meg_remove_tree("old", NULL);
    save_ok(&a, "old", 5, 0, -1); /* no older iteration exists */
    remove_file("old/iter_0000005/state.json");
    assert_true(meg_ckpt_open(&c, "old", MEG_UNSET, &e) < 0);
    assert_null(strstr(e.msg, "--ckpt-step"));
    free_fixture(&a);
    free_fixture(&b);
}

static void lists_all_mismatched_tensors(void **state)
{
    struct meg_st_tensor t[] = {
        { .name = "decoder.final_layernorm.weigh", .dtype = "F32", .ndim = 1, .dim = { 8 } },
        { .name = "decoder.final_layernorm.bias", .dtype = "F32", .ndim = 2, .dim = { 2, 4 } }
    };
    const float zero[8] = { 0 };
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_err e;

    (void)state;
    t[0].data = t[1].data = zero;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "fit", 1, 0, -1);
    put_tensors("fit/iter_0000001/model-2-head.safetensors", t, 2, false);
    assert_int_equal(meg_ckpt_open(&c, "fit", MEG_UNSET, &e), MEG_EFORMAT);
    assert_contains(e.msg, "1 missing: decoder.final_layernorm.weight;|1 mismatched: decoder.final_layernorm.bias "
                           "has shape [2,4], expected [8]|1 unknown: decoder.final_layernorm.weigh");
    free_fixture(&b);
}

/* A message lists as many names as fit, and the number of the others. */
static void a_long_list_of_tensors_ends_with_the_number_of_others(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt_shard slot = { .name = "exp_max" };
    struct meg_ckpt *c;
    struct meg_err e;
    int shown = 0, others = 0;

    (void)state;
    make_fixture(&b, 8, 8, 1);
    save_ok(&b, "long", 1, 0, -1);
    c = open_ok("long", MEG_UNSET);
    slot.data = b.w;
    assert_int_equal(meg_ckpt_load(c, &b.p, &meg_mesh_one, &slot, 1, &e), MEG_EFORMAT);
    for (const char *p = e.msg; (p = strstr(p, "optimizer.state.exp_max.")); p++)
        shown++;
    assert_non_null(strstr(e.msg, " and "));
    assert_int_equal(sscanf(strstr(e.msg, " and "), " and %d more", &others), 1);
    assert_true(shown > 10 && others > 10);
    assert_int_equal(shown + others, b.p.n);
    meg_ckpt_close(c);
    free_fixture(&b);
}

static void lists_all_changed_options(void **state)
{
    struct ckpt_fixture b;
    struct meg_ckpt *c;
    struct meg_model_conf m;
    struct meg_err e;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "shape", 1, 0, -1);
    c = open_ok("shape", MEG_UNSET);
    assert_int_equal(meg_ckpt_check_conf(c, &b.m, &e), 0);
    m = b.m;
    m.hidden_dropout = 0.3; /* does not change shapes */
    assert_int_equal(meg_ckpt_check_conf(c, &m, &e), 0);
    m.num_layers = 3;
    m.is_untied = true;
    m.vocab_size = 12;
    assert_int_equal(meg_ckpt_check_conf(c, &m, &e), MEG_EUSAGE);
    assert_contains(
        e.msg,
        "--num-layers is 1 in the checkpoint, but 3 in this run|--untie-embeddings-and-output-weights is no in the "
        "checkpoint, but yes in this run|vocabulary size is 11 in the checkpoint, but 12 in this run");
    meg_ckpt_close(c);
    free_fixture(&b);
}

/* The bytes depend on the state only: they are equal in a different directory and after other saves. */
static void files_are_reproducible(void **state)
{
    static const char *const name[] = { "model-0-embedding.safetensors", "model-1-layer-00000.safetensors",
                                        "optim-2-head.safetensors", "state.json", "manifest.json" };
    struct ckpt_fixture b;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "one", 5, 0, -1);
    save_ok(&b, "two", 4, 0, -1);
    save_ok(&b, "two", 5, 1, 3);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        char path[2][100];
        struct meg_str s[2];

        snprintf(path[0], 100, "one/iter_0000005/%s", name[i]);
        snprintf(path[1], 100, "two/iter_0000005/%s", name[i]);
        s[0] = read_bytes(path[0]);
        s[1] = read_bytes(path[1]);
        assert_int_equal(s[0].n, s[1].n);
        assert_memory_equal(s[0].s, s[1].s, s[0].n);
        meg_str_free(&s[0]);
        meg_str_free(&s[1]);
    }
    free_fixture(&b);
}

static void a_lost_lock_aborts_a_save(void **state)
{
    struct meg_lock lock;
    struct meg_ckpt *c;
    struct meg_err e;
    struct ckpt_fixture b;

    (void)state;
    make_fixture(&b, 1, 8, 1);
    save_ok(&b, "lost-lock", 5, 0, -1);
    assert_int_equal(meg_lock_dir(&lock, "lost-lock", &e), 0);
    b.lock = &lock;
    save_ok(&b, "lost-lock", 10, 0, -1);
    assert_int_equal(unlink("lost-lock/" MEG_LOCK_DIR_FILE), 0);
    save_ok(&b, "lost-lock", 10, 0, -1); /* acquires the lock again */
    put_file("lost-lock/" MEG_LOCK_DIR_FILE, "program meg-train\nhost other\npid 1\n", 35);
    assert_int_equal(save_fixture(&b, "lost-lock", 15, 1, -1, &e), MEG_EIO);
    assert_non_null(strstr(e.msg, "the lock file of this process was removed"));
    c = open_ok("lost-lock", MEG_UNSET);
    assert_int_equal(meg_ckpt_iteration(c), 10);
    meg_ckpt_close(c);
    assert_int_equal(count_in("lost-lock"), 4); /* no file was written or removed */
    meg_lock_release(&lock);
    free_fixture(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_is_bit_identical),
        cmocka_unit_test(opens_the_newest_complete_iteration_without_a_tracker),
        cmocka_unit_test(keep_last_removes_only_older_iterations),
        cmocka_unit_test(removes_leftovers_of_a_killed_save),
        cmocka_unit_test(a_lost_lock_aborts_a_save),
        cmocka_unit_test(names_the_chunk_of_a_flipped_bit),
        cmocka_unit_test(each_tensor_is_verified_by_one_rank),
        cmocka_unit_test(of_several_damaged_tensors_the_first_is_named),
        cmocka_unit_test(refuses_changed_metadata_files),
        cmocka_unit_test(refuses_a_truncated_tensor_file),
        cmocka_unit_test(a_damaged_iteration_suggests_an_older_one),
        cmocka_unit_test(lists_all_mismatched_tensors),
        cmocka_unit_test(a_long_list_of_tensors_ends_with_the_number_of_others),
        cmocka_unit_test(lists_all_changed_options),
        cmocka_unit_test(files_are_reproducible),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
