/* explain.c - describe a HuggingFaceTokenizer or PretrainedFromHF. */
#include <stdlib.h>
#include "tokenizer/hf/config.h"
#include "tokenizer/internal.h"

static json_t *flags_of(const struct meg_hf_added_token *a)
{
    const struct {
        const char *name;
        bool is_set;
    } flags[] = { { "special", a->is_special },
                  { "normalized", a->flags.normalized },
                  { "lstrip", a->flags.lstrip },
                  { "rstrip", a->flags.rstrip },
                  { "single_word", a->flags.single_word } };
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i].is_set)
            json_array_append_new(list, json_string(flags[i].name));
    }
    return list;
}

static json_t *files_of(unsigned named_in)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json", "the defaults of the class" };
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (named_in >> i & 1)
            json_array_append_new(list, json_string(names[i]));
    }
    return list;
}

static int by_id(const void *a, const void *b)
{
    const struct meg_hf_added_token *x = *(const struct meg_hf_added_token *const *)a;
    const struct meg_hf_added_token *y = *(const struct meg_hf_added_token *const *)b;

    return (x->id > y->id) - (x->id < y->id);
}

/* Return the added tokens in the order of their ids. */
static json_t *added_tokens(const struct meg_hf_added *added)
{
    const struct meg_hf_added_token **sorted = meg_realloc_array(NULL, (size_t)added->n + 1, sizeof *sorted);
    json_t *list = json_array();

    for (int64_t i = 0; i < added->n; i++)
        sorted[i] = &added->v[i];
    qsort(sorted, (size_t)added->n, sizeof *sorted, by_id);
    for (int64_t i = 0; i < added->n; i++)
        json_array_append_new(list, json_pack("{s:i,s:o,s:o,s:o}", "id", sorted[i]->id, "token",
                                              json_stringn(sorted[i]->content.s, sorted[i]->content.n), "flags",
                                              flags_of(sorted[i]), "named_in", files_of(sorted[i]->named_in)));
    free(sorted);
    return list;
}

/* Return whether a component, or a step of it, puts a space or its mark before a text. */
static bool has_prefix_space(const json_t *part)
{
    const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
    const char *const lists[] = { "normalizers", "pretokenizers" };
    const json_t *step;
    size_t i;
    bool has = json_is_true(json_object_get(part, "add_prefix_space")) || json_object_get(part, "prepend") ||
               (scheme && *scheme != 'n'); /* "first" or "always", not "never" */

    for (int k = 0; k < 2; k++) {
        json_array_foreach(json_object_get(part, lists[k]), i, step)
        {
            has |= has_prefix_space(step);
        }
    }
    return has;
}

void meg_hf_explain(struct meg_tokenizer *t, json_t *report)
{
    const struct meg_hf_files *f = t->files;

    json_object_set_new(report, "class", f->class_name ? json_sprintf("%sFast", f->class_name) : json_null());
    json_object_set_new(report, "transformers", json_string(MEG_HF_TRANSFORMERS));
    json_object_set_new(report, "added_tokens", added_tokens(&f->added));
    json_object_set_new(report, "before_a_text", meg_tok_explain_ids(t, f->template_before.v, f->template_before.n));
    json_object_set_new(report, "after_a_text", meg_tok_explain_ids(t, f->template_after.v, f->template_after.n));
    json_object_set_new(report, "prefix_space",
                        json_boolean(has_prefix_space(f->normalizer_json) || has_prefix_space(f->pretokenizer_json)));
    json_object_set(report, "normalization", f->normalizer_json);
    json_object_set(report, "pre-tokenization", f->pretokenizer_json);
    json_object_set_new(report, "splits_special_tokens", json_boolean(f->splits_special_tokens));
    json_object_set(report, "contradictions", f->differences);
}
