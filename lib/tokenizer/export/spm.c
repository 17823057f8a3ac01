/*
 * spm.c - convert a SentencePiece model.  For BPE, each split of a normal piece into two normal pieces becomes a merge;
 * the merges are sorted by descending score of the merged piece.  For unigram, pieces and scores are copied.
 * Normalizer and decoder are created from the normalizer spec.
 *
 * Hugging Face's tokenizers differ from SentencePiece in two points.  Their character map, Precompiled, uses the
 * shortest key that matches at the start of a grapheme cluster; SentencePiece uses the longest key.  Unigram sums
 * scores in double; SentencePiece rounds each sum to float.  If several segmentations have nearly equal scores, the two
 * libraries may therefore choose different ones.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/strtab.h"
#include "io/base64.h"
#include "tokenizer/export/internal.h"
#include "tokenizer/spm/spm.h"
#include "unicode/utf8.h"

static int fail_unsupported(struct meg_err *e, const char *path, const char *why)
{
    return meg_fail(e, MEG_EUSAGE, "%s: tokenizer.json cannot represent %s", path, why);
}

static bool has_type(const struct meg_spm_model *m, enum meg_spm_piece_type type)
{
    for (int32_t id = 0; id < m->n; id++)
        if (m->piece[id].type == type)
            return true;
    return false;
}

/* ---- Normalizer and decoder ---- */

/* Return true if the character map replaces any part of the piece. */
static bool is_mapped(const struct meg_spm_model *m, struct meg_str piece)
{
    const char *to;

    for (size_t i = 0; i < piece.n; i++)
        if (meg_charsmap_longest(&m->normalizer_spec.map, piece.s + i, (int64_t)(piece.n - i), &to) > 0)
            return true;
    return false;
}

/*
 * Check that user-defined pieces contain no space and no key of the character map, so that the normalizer does not
 * change these pieces.  SentencePiece matches these pieces in the original text, but Hugging Face's library matches
 * them in normalized text.
 */
static int check_user_defined(const struct meg_spm_model *m, const char *path, struct meg_err *e)
{
    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);

        if (m->piece[id].type == MEG_SPM_USER_DEFINED &&
            (memchr(piece.s, ' ', piece.n) || (m->normalizer_spec.has_map && is_mapped(m, piece))))
            return meg_fail(e, MEG_EUSAGE,
                            "%s: tokenizer.json cannot represent the user-defined piece '%.*s', because the normalizer "
                            "of the model changes this piece",
                            path, (int)piece.n, piece.s);
    }
    return 0;
}

/* Append text escaped for a regular expression. */
static void add_quoted(struct meg_str *out, struct meg_str text)
{
    for (size_t i = 0; i < text.n; i++) {
        if (strchr("\\^$.|?*+()[]{}-/&~#", text.s[i]) && text.s[i])
            meg_str_add(out, "\\", 1);
        meg_str_add(out, text.s + i, 1);
    }
}

/*
 * Return the normalizer that prepends a space.  Hugging Face's library normalizes each added token, and Prepend would
 * add a space to each user-defined piece.  For a model with user-defined pieces, return Replace instead of Prepend.
 * The regular expression of Replace does not match a text that equals a user-defined piece.
 */
static json_t *dummy_prefix(const struct meg_spm_model *m, const char *space)
{
    struct meg_str regex = { 0 };
    json_t *part;

    if (!has_type(m, MEG_SPM_USER_DEFINED))
        return meg_export_component("Prepend", "{s:s}", "prepend", space);
    meg_str_printf(&regex, "\\A(?!(?:");
    for (int32_t id = 0; id < m->n; id++) {
        if (m->piece[id].type != MEG_SPM_USER_DEFINED)
            continue;
        add_quoted(&regex, meg_spm_piece_text(m, id));
        meg_str_add(&regex, "|", 1);
    }
    meg_str_printf(&regex, ")\\z)"); /* the empty alternative after the last | excludes the empty text */
    part = meg_export_replace(regex.s, space);
    meg_str_free(&regex);
    return part;
}

static json_t *precompiled(const struct meg_spm_normalizer_spec *spec)
{
    struct meg_str text = { 0 };
    json_t *part;

    meg_base64_encode(&text, spec->map_bytes.s, (int64_t)spec->map_bytes.n);
    part = meg_export_component("Precompiled", "{s:s}", "precompiled_charsmap", text.s);
    meg_str_free(&text);
    return part;
}

static json_t *normalizer(const struct meg_spm_model *m)
{
    const struct meg_spm_normalizer_spec *spec = &m->normalizer_spec;
    json_t *steps = json_array();

    if (spec->has_map)
        json_array_append_new(steps, precompiled(spec));
    if (spec->remove_extra_whitespaces) {
        /*
         * like SentencePiece, strip spaces at both ends and, if spaces are escaped, U+2581 at the end of the original
         * text
         */
        json_array_append_new(
            steps,
            meg_export_replace(spec->escape_whitespaces ? "\\A +|[ " MEG_SPM_SPACE_SYMBOL "]+\\z" : "\\A +| +\\z", ""));
        json_array_append_new(steps, meg_export_replace(" {2,}", " "));
    }
    if (spec->add_dummy_prefix)
        json_array_append_new(steps, dummy_prefix(m, spec->escape_whitespaces ? MEG_SPM_SPACE_SYMBOL : " "));
    if (spec->escape_whitespaces)
        json_array_append_new(steps, meg_export_component("Replace", "{s:{s:s},s:s}", "pattern", "String", " ",
                                                          "content", MEG_SPM_SPACE_SYMBOL));
    return meg_export_component("Sequence", "{s:o}", "normalizers", steps);
}

static json_t *decoder(const struct meg_spm_normalizer_spec *spec)
{
    json_t *steps = json_array();

    if (spec->escape_whitespaces)
        json_array_append_new(steps, meg_export_component("Replace", "{s:{s:s},s:s}", "pattern", "String",
                                                          MEG_SPM_SPACE_SYMBOL, "content", " "));
    json_array_append_new(steps, meg_export_component("ByteFallback", "{}"));
    json_array_append_new(steps, meg_export_component("Fuse", "{}"));
    if (spec->add_dummy_prefix || spec->remove_extra_whitespaces)
        json_array_append_new(steps,
                              meg_export_component("Strip", "{s:s,s:i,s:i}", "content", " ", "start", 1, "stop", 0));
    return meg_export_component("Sequence", "{s:o}", "decoders", steps);
}

/* ---- BPE ---- */

struct merge {
    float score;
    int32_t id, left, right;
};

static int by_score(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id > y->id ? 1 : -1;
    return (x->left > y->left) - (x->left < y->left);
}

/* Return the id of the piece of type NORMAL with text s [n], or -1 if there is none. */
static int32_t find_normal(const struct meg_spm_model *m, const struct meg_strtab *pieces, const char *s, size_t n)
{
    const int64_t id = meg_strtab_find(pieces, s, (int64_t)n);

    return id >= 0 && m->piece[id].type == MEG_SPM_NORMAL ? (int32_t)id : -1;
}

/* Set *out to all merges, sorted by_score, and return their number.  The caller frees *out. */
static int64_t list_merges(struct merge **out, const struct meg_spm_model *m, const struct meg_strtab *pieces)
{
    struct merge *v = NULL;
    int64_t n = 0, cap = 0;

    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);
        int32_t cp;

        if (m->piece[id].type != MEG_SPM_NORMAL)
            continue;
        for (size_t i = (size_t)meg_utf8_decode_unchecked(piece.s, &cp); i < piece.n;
             i += (size_t)meg_utf8_decode_unchecked(piece.s + i, &cp)) {
            const int32_t left = find_normal(m, pieces, piece.s, i);
            const int32_t right = left < 0 ? -1 : find_normal(m, pieces, piece.s + i, piece.n - i);

            if (right < 0)
                continue;
            v = meg_grow(v, n, &cap, sizeof *v);
            v[n++] = (struct merge){ m->piece[id].score, id, left, right };
        }
    }
    if (n > 0)
        qsort(v, (size_t)n, sizeof *v, by_score);
    *out = v;
    return n;
}

/* Check that all characters of normal pieces are normal pieces, since tokenizer.json cannot merge other characters. */
static int check_characters(const struct meg_spm_model *m, const struct meg_strtab *pieces, const char *path,
                            struct meg_err *e)
{
    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);
        int32_t cp;

        if (m->piece[id].type != MEG_SPM_NORMAL)
            continue;
        for (size_t i = 0, len; i < piece.n; i += len) {
            len = (size_t)meg_utf8_decode_unchecked(piece.s + i, &cp);
            if (find_normal(m, pieces, piece.s + i, len) < 0)
                return meg_fail(e, MEG_EUSAGE,
                                "%s: tokenizer.json cannot represent piece '%.*s', because its character U+%04X "
                                "is not a piece",
                                path, (int)piece.n, piece.s, (unsigned)cp);
        }
    }
    return 0;
}

static int bpe_model(struct meg_export_builder *b, const struct meg_spm_model *m, const char *path, struct meg_err *e)
{
    const struct meg_str unk = meg_spm_piece_text(m, m->unk);
    json_t *vocab, *merges;
    struct meg_strtab pieces = { 0 };
    struct merge *merge = NULL;
    int64_t n;
    int r;

    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);
        const int64_t first = meg_strtab_add(&pieces, piece.s, (int64_t)piece.n);

        if (first != id) {
            r = meg_fail(e, MEG_EUSAGE,
                         "%s: tokenizer.json cannot represent pieces %" PRId64 " and %d, which are both '%.*s'", path,
                         first, id, (int)piece.n, piece.s);
            goto out;
        }
    }
    if ((r = check_characters(m, &pieces, path, e)) < 0)
        goto out;
    vocab = json_object();
    merges = json_array();
    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);

        json_object_setn_new_nocheck(vocab, piece.s, piece.n, json_integer(id));
    }
    n = list_merges(&merge, m, &pieces);
    for (int64_t i = 0; i < n; i++) {
        const struct meg_str left = meg_spm_piece_text(m, merge[i].left), right = meg_spm_piece_text(m, merge[i].right);

        json_array_append_new(merges, meg_export_merge(left.s, left.n, right.s, right.n));
    }
    b->model =
        meg_export_component("BPE", "{s:n,s:s%,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "dropout", "unk_token", unk.s, unk.n,
                             "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback",
                             m->byte_fallback, "ignore_merges", 0, "vocab", vocab, "merges", merges);
out:
    free(merge);
    meg_strtab_free(&pieces);
    return r;
}

/* ---- Unigram ---- */

/*
 * Return true if text can be split before each space: the normalizer replaces spaces by U+2581, U+2581 is a normal
 * piece, and no piece contains U+2581 after its first character.
 */
static bool splits_at_spaces(const struct meg_spm_model *m)
{
    const size_t nsymbol = strlen(MEG_SPM_SPACE_SYMBOL);
    bool has_space = false;

    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);

        for (size_t i = 1; i + nsymbol <= piece.n; i++)
            if (memcmp(piece.s + i, MEG_SPM_SPACE_SYMBOL, nsymbol) == 0)
                return false;
        has_space |= m->piece[id].type == MEG_SPM_NORMAL && piece.n == nsymbol &&
                     memcmp(piece.s, MEG_SPM_SPACE_SYMBOL, nsymbol) == 0;
    }
    return has_space && m->normalizer_spec.escape_whitespaces;
}

static void unigram_model(struct meg_export_builder *b, const struct meg_spm_model *m)
{
    json_t *vocab = json_array();

    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);

        json_array_append_new(vocab,
                              json_pack("[o,f]", json_stringn_nocheck(piece.s, piece.n), (double)m->piece[id].score));
    }
    b->model = meg_export_component("Unigram", "{s:i,s:o,s:b}", "unk_id", (int)m->unk, "vocab", vocab, "byte_fallback",
                                    m->byte_fallback);
    if (splits_at_spaces(m))
        b->pre_tokenizer = meg_export_component("Metaspace", "{s:s,s:s,s:b}", "replacement", MEG_SPM_SPACE_SYMBOL,
                                                "prepend_scheme", "never", "split", 1);
}

/* ---- The model ---- */

/* Return true if a piece is <extra_id_N>, N < nextra. */
static bool is_extra_id(struct meg_str piece, int64_t nextra)
{
    static const char prefix[] = "<extra_id_";
    const size_t n = strlen(prefix);
    char name[40];

    if (piece.n <= n || memcmp(piece.s, prefix, n) != 0)
        return false;
    snprintf(name, sizeof name, "%s%d>", prefix, atoi(piece.s + n));
    return strlen(name) == piece.n && memcmp(name, piece.s, piece.n) == 0 && atoi(piece.s + n) < nextra;
}

/*
 * Add the control pieces, the unknown piece, the user-defined pieces and the special tokens of SentencePieceTokenizer
 * to added_tokens.
 */
static void add_tokens(struct meg_export_builder *b, const struct meg_spm_model *m)
{
    const bool is_extended = b->tok->type == &meg_tok_sentencepiece;
    const int64_t nextra = is_extended && b->conf->vocab_extra_ids != MEG_UNSET ? b->conf->vocab_extra_ids : 0;
    struct meg_str text = { 0 };

    for (int32_t id = 0; id < m->n; id++) {
        const struct meg_str piece = meg_spm_piece_text(m, id);
        const enum meg_spm_piece_type type = m->piece[id].type;
        const bool is_user_defined = type == MEG_SPM_USER_DEFINED && !is_extra_id(piece, nextra);

        if (type == MEG_SPM_CONTROL || type == MEG_SPM_UNKNOWN || is_user_defined || is_extra_id(piece, nextra))
            meg_export_add_special(b, id, piece.s, piece.n);
        b->added[id].is_normalized = is_user_defined;
    }
    for (int32_t id = m->n; id < meg_tokenizer_vocab_size(b->tok); id++) {
        text.n = 0;
        if (meg_tokenizer_bytes(b->tok, &id, 1, &text, NULL) == 0)
            meg_export_add_special(b, id, text.s, text.n);
    }
    meg_str_free(&text);
    meg_export_add_all_special(b);
}

int meg_export_spm(struct meg_export_builder *b, struct meg_err *e)
{
    const char *path = b->conf->tokenizer_model;
    const struct meg_spm_model *m = meg_spm_model_of(b->tok);
    int r;

    if (has_type(m, MEG_SPM_UNUSED))
        return fail_unsupported(e, path, "unused pieces");
    if (m->normalizer_spec.add_dummy_prefix && m->normalizer_spec.treat_whitespace_as_suffix)
        return fail_unsupported(e, path, "a space after the text (treat_whitespace_as_suffix)");
    if ((r = check_user_defined(m, path, e)) < 0)
        return r;
    if (m->type == MEG_SPM_UNIGRAM)
        unigram_model(b, m);
    else if ((r = bpe_model(b, m, path, e)) < 0)
        return r;
    b->unk = m->unk;
    b->is_not_spm_bpe = m->type != MEG_SPM_BPE;
    b->has_no_prefix = !m->normalizer_spec.add_dummy_prefix;
    b->normalizer = normalizer(m);
    b->decoder = decoder(&m->normalizer_spec);
    add_tokens(b, m);
    return 0;
}
