/* model.c - read a SentencePiece .model file, a Protocol Buffers message ModelProto. */
#include "tokenizer/spm/model.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/strtab.h"
#include "io/protobuf.h"
#include "tokenizer/internal.h"
#include "unicode/utf8.h"

enum { MAX_PIECES = 1 << 24, MAX_PIECE_BYTES = 4096 };

/* The fields of a piece, of the trainer spec and of the model that are read; texts belong to the loader. */
struct loader {
    struct meg_spm_model *m;
    struct meg_strtab matched, reserved; /* pieces read so far: matched in text; not matched in text */
    int64_t cap;
    bool has_byte;
    struct meg_str text; /* of the current piece */
    float score;
    int32_t piece_type, model_type;
    bool treat_whitespace_as_suffix, byte_fallback;
    struct meg_str unk_surface, bos, eos, pad; /* bos, eos, pad: texts of the special pieces */
};

/* A field of a message of sentencepiece_model.proto that is read; other fields are skipped. */
struct field {
    int32_t number;
    const char *name; /* in error messages */
    enum { FLOAT, INT32, BOOL, TEXT, CHARSMAP } type;
    size_t offset; /* of the value in the struct to fill: float, int32_t, bool, meg_str, or 0 for CHARSMAP */
};

static int set_text(const struct meg_pb_field *f, const char *what, struct meg_str *out, struct meg_err *e)
{
    int64_t n = f->bytes.end - f->bytes.p, bad;
    int r;

    if ((r = meg_pb_expect(f, MEG_PB_LEN, what, e)) < 0)
        return r;
    if ((bad = meg_utf8_find_invalid((const char *)f->bytes.p, n)) >= 0)
        return meg_pb_fail(&f->bytes, f->bytes.p + bad, e, "%s is not UTF-8", what);
    if (memchr(f->bytes.p, 0, (size_t)n))
        return meg_pb_fail(&f->bytes, f->bytes.p, e, "%s contains a zero byte", what);
    out->n = 0;
    meg_str_add(out, f->bytes.p, (size_t)n);
    return 0;
}

/* ---- Pieces ---- */

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

int meg_spm_piece_to_byte(const char *s, size_t n)
{
    int high, low;

    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    high = hex_digit(s[3]);
    low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static int add_piece(struct loader *l, const struct meg_pb *at, const struct meg_str *text, float score, int32_t type,
                     struct meg_err *e)
{
    struct meg_spm_model *m = l->m;
    int32_t id = m->n;
    struct meg_strtab *t;
    int64_t before;
    int byte;

    if (id == MAX_PIECES)
        return meg_pb_fail(at, at->p, e, "the model has more than %d pieces", MAX_PIECES);
    if (text->n == 0 || text->n > MAX_PIECE_BYTES)
        return meg_pb_fail(at, at->p, e, "piece %d has %zu bytes; expected 1 to %d", id, text->n, MAX_PIECE_BYTES);
    if (type < MEG_SPM_NORMAL || type > MEG_SPM_BYTE)
        return meg_pb_fail(at, at->p, e, "piece %d has type %d; expected 1 to 6", id, type);
    if (!isfinite(score))
        return meg_pb_fail(at, at->p, e, "piece %d has score %f; expected a finite number", id, score);
    if (type == MEG_SPM_UNKNOWN && m->unk >= 0)
        return meg_pb_fail(at, at->p, e, "pieces %d and %d are both of type UNKNOWN", m->unk, id);
    m->piece = meg_grow(m->piece, id + 1, &l->cap, sizeof *m->piece);
    m->piece[id] = (struct meg_spm_piece){ (int64_t)m->text.n, score, (enum meg_spm_piece_type)type };
    t = meg_spm_is_matched(m, id) ? &l->matched : &l->reserved;
    before = t->n;
    if (meg_strtab_add(t, text->s, (int64_t)text->n) < before)
        return meg_pb_fail(at, at->p, e, "piece %d has the text '%.*s' of an earlier piece", id, (int)text->n, text->s);
    if (type == MEG_SPM_UNKNOWN)
        m->unk = id;
    if (type == MEG_SPM_BYTE) {
        if ((byte = meg_spm_piece_to_byte(text->s, text->n)) < 0)
            return meg_pb_fail(at, at->p, e, "piece %d is of type BYTE, but its text '%.*s' is not of the form <0xNN>",
                               id, (int)text->n, text->s);
        m->byte_id[byte] = id;
        l->has_byte = true;
    }
    meg_str_add(&m->text, text->s, text->n);
    m->piece[++m->n] = (struct meg_spm_piece){ .offset = (int64_t)m->text.n };
    return 0;
}

/* ---- Messages ---- */

static int read_map(struct meg_spm_normalizer_spec *spec, const struct meg_pb_field *f, struct meg_err *e)
{
    struct meg_err why;
    int r;

    if ((r = meg_pb_expect(f, MEG_PB_LEN, "precompiled_charsmap", e)) < 0)
        return r;
    meg_charsmap_free(&spec->map);
    spec->map = (struct meg_charsmap){ 0 };
    spec->map_bytes.n = 0;
    meg_str_add(&spec->map_bytes, f->bytes.p, (size_t)(f->bytes.end - f->bytes.p));
    spec->has_map = f->bytes.end > f->bytes.p;
    if (spec->has_map && meg_charsmap_load(&spec->map, f->bytes.p, f->bytes.end - f->bytes.p, &why) < 0)
        return meg_pb_fail(&f->bytes, f->bytes.p, e, "precompiled_charsmap: %s", why.msg);
    return 0;
}

/* Read the n fields of a message into the struct `to`.  If check is not NULL, call it with each known field. */
static int read_message(void *to, struct meg_pb in, const struct field *field, int n,
                        int (*check)(const void *to, const struct meg_pb_field *f, struct meg_err *e),
                        struct meg_err *e)
{
    struct meg_pb_field f;
    int r;

    while ((r = meg_pb_next(&in, &f, e)) > 0) {
        for (int i = 0; i < n && r >= 0; i++) {
            void *value = (char *)to + field[i].offset;

            if (field[i].number != f.number)
                continue;
            switch (field[i].type) {
            case FLOAT: r = meg_pb_float(&f, field[i].name, value, e); break;
            case INT32: r = meg_pb_int32(&f, field[i].name, value, e); break;
            case BOOL: r = meg_pb_bool(&f, field[i].name, value, e); break;
            case TEXT: r = set_text(&f, field[i].name, value, e); break;
            case CHARSMAP: r = read_map(to, &f, e); break;
            }
            if (r == 0 && check)
                r = check(to, &f, e);
        }
        if (r < 0)
            return r;
    }
    return r;
}

static int read_piece(struct loader *l, struct meg_pb in, struct meg_err *e)
{
    static const struct field fields[] = {
        { 1, "the text of a piece", TEXT, offsetof(struct loader, text) },
        { 2, "the score of a piece", FLOAT, offsetof(struct loader, score) },
        { 3, "the type of a piece", INT32, offsetof(struct loader, piece_type) },
    };
    int r;

    l->text.n = 0;
    l->score = 0;
    l->piece_type = MEG_SPM_NORMAL;
    if ((r = read_message(l, in, fields, 3, NULL, e)) < 0)
        return r;
    return add_piece(l, &in, &l->text, l->score, l->piece_type, e);
}

enum { MODEL_TYPE = 3 };

static int check_model_type(const void *loader, const struct meg_pb_field *f, struct meg_err *e)
{
    const int32_t type = ((const struct loader *)loader)->model_type;

    if (f->number != MODEL_TYPE || type == MEG_SPM_UNIGRAM || type == MEG_SPM_BPE)
        return 0;
    return meg_pb_fail(&f->bytes, f->tag, e, "model type %d%s is not supported; expected 1 (unigram) or 2 (BPE)", type,
                       type == 3   ? " (words)"
                       : type == 4 ? " (characters)"
                                   : "");
}

static int read_trainer(struct loader *l, struct meg_pb in, struct meg_err *e)
{
    static const struct field fields[] = {
        { MODEL_TYPE, "the type of the model", INT32, offsetof(struct loader, model_type) },
        { 24, "treat_whitespace_as_suffix", BOOL, offsetof(struct loader, treat_whitespace_as_suffix) },
        { 35, "byte_fallback", BOOL, offsetof(struct loader, byte_fallback) },
        { 44, "unk_surface", TEXT, offsetof(struct loader, unk_surface) },
        { 46, "bos_piece", TEXT, offsetof(struct loader, bos) },
        { 47, "eos_piece", TEXT, offsetof(struct loader, eos) },
        { 48, "pad_piece", TEXT, offsetof(struct loader, pad) },
    };

    return read_message(l, in, fields, sizeof fields / sizeof *fields, check_model_type, e);
}

static int read_normalizer_spec(struct meg_spm_normalizer_spec *spec, struct meg_pb in, struct meg_err *e)
{
    static const struct field fields[] = {
        { 2, "precompiled_charsmap", CHARSMAP, 0 },
        { 3, "add_dummy_prefix", BOOL, offsetof(struct meg_spm_normalizer_spec, add_dummy_prefix) },
        { 4, "remove_extra_whitespaces", BOOL, offsetof(struct meg_spm_normalizer_spec, remove_extra_whitespaces) },
        { 5, "escape_whitespaces", BOOL, offsetof(struct meg_spm_normalizer_spec, escape_whitespaces) },
    };

    return read_message(spec, in, fields, sizeof fields / sizeof *fields, NULL, e);
}

/*
 * Check that the model has no denormalizer with a character map.  Such a map would change decoded text.  Published
 * models have none.
 */
static int check_no_denormalizer(struct meg_pb in, struct meg_err *e)
{
    struct meg_spm_normalizer_spec spec = { 0 };
    int r = read_normalizer_spec(&spec, in, e);

    if (r == 0 && spec.has_map)
        r = meg_pb_fail(&in, in.p, e, "a denormalizer with a character map is not supported");
    meg_charsmap_free(&spec.map);
    meg_str_free(&spec.map_bytes);
    return r;
}

/* ---- The model ---- */

static int read_model(struct loader *l, struct meg_pb in, struct meg_err *e)
{
    enum { MODEL_PIECE = 1, MODEL_TRAINER, MODEL_NORMALIZER, MODEL_DENORMALIZER = 5 };
    static const char *const name[MODEL_DENORMALIZER + 1] = { [MODEL_PIECE] = "a piece",
                                                              [MODEL_TRAINER] = "trainer_spec",
                                                              [MODEL_NORMALIZER] = "normalizer_spec",
                                                              [MODEL_DENORMALIZER] = "denormalizer_spec" };
    struct meg_pb_field f;
    int r;

    while ((r = meg_pb_next(&in, &f, e)) > 0) {
        if (f.number > MODEL_DENORMALIZER || !name[f.number])
            continue;
        if ((r = meg_pb_expect(&f, MEG_PB_LEN, name[f.number], e)) < 0)
            return r;
        switch (f.number) {
        case MODEL_PIECE: r = read_piece(l, f.bytes, e); break;
        case MODEL_TRAINER: r = read_trainer(l, f.bytes, e); break;
        case MODEL_NORMALIZER: r = read_normalizer_spec(&l->m->normalizer_spec, f.bytes, e); break;
        default: r = check_no_denormalizer(f.bytes, e);
        }
        if (r < 0)
            return r;
    }
    l->m->type = (enum meg_spm_model_type)l->model_type;
    l->m->byte_fallback = l->byte_fallback;
    l->m->normalizer_spec.treat_whitespace_as_suffix = l->treat_whitespace_as_suffix;
    meg_str_add(&l->m->unk_surface, l->unk_surface.s, l->unk_surface.n);
    return r;
}

/* Return the id of the control piece with this text, or -1. */
static int32_t control_id(const struct meg_spm_model *m, const struct meg_str *name)
{
    for (int32_t id = 0; id < m->n; id++) {
        struct meg_str text = meg_spm_piece_text(m, id);

        if (m->piece[id].type == MEG_SPM_CONTROL && text.n == name->n && memcmp(text.s, name->s, text.n) == 0)
            return id;
    }
    return -1;
}

static void set_default(struct meg_str *name, const char *text)
{
    if (name->n == 0)
        meg_str_add(name, text, strlen(text));
}

static int resolve_special_ids(struct loader *l, const char *path, struct meg_err *e)
{
    struct meg_spm_model *m = l->m;

    if (m->n == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: the file has no pieces; it is not a SentencePiece model", path);
    if (m->unk < 0)
        return meg_fail(e, MEG_EFORMAT, "%s: none of the %d pieces has type UNKNOWN", path, m->n);
    if (l->matched.n == 0)
        return meg_fail(e, MEG_EFORMAT, "%s: none of the %d pieces has type NORMAL, USER_DEFINED or UNUSED", path,
                        m->n);
    if (l->has_byte && !m->byte_fallback)
        return meg_fail(e, MEG_EFORMAT, "%s: the model has pieces of type BYTE, but byte_fallback is not set", path);
    for (int b = 0; m->byte_fallback && b < 256; b++) {
        if (m->byte_id[b] < 0)
            return meg_fail(e, MEG_EFORMAT, "%s: byte_fallback is set, but there is no piece <0x%02X>", path, b);
    }
    set_default(&l->bos, "<s>");
    set_default(&l->eos, "</s>");
    set_default(&l->pad, "<pad>");
    m->bos = control_id(m, &l->bos);
    m->eos = control_id(m, &l->eos);
    m->pad = control_id(m, &l->pad);
    return 0;
}

/*
 * Reject a file that begins with a letter, a digit, '{', '[', '+' or '/'.  Such a file is text, for example Llama 3's
 * tokenizer.model.  No serialized model begins with such a byte.
 */
static int check_not_text(const struct meg_mmap *file, const char *path, struct meg_err *e)
{
    const int first = file->n > 0 ? *(const unsigned char *)file->p : 0;

    if (!isalnum(first) && !memchr("{[+/", first, 4))
        return 0;
    return meg_fail(e, MEG_EFORMAT,
                    "%s: this is a text file, not a SentencePiece model; use TikTokenizer for lines of base64 and "
                    "rank, or HuggingFaceTokenizer for tokenizer.json",
                    path);
}

int meg_spm_model_load(struct meg_spm_model **out, const char *path, struct meg_err *e)
{
    static const struct meg_spm_normalizer_spec spec = { .add_dummy_prefix = true,
                                                         .remove_extra_whitespaces = true,
                                                         .escape_whitespaces = true };
    struct loader l = { .m = meg_new(sizeof *l.m), .model_type = MEG_SPM_UNIGRAM };
    struct meg_mmap file = { 0 };
    int r;

    l.m->unk = -1;
    l.m->normalizer_spec = spec;
    memset(l.m->byte_id, -1, sizeof l.m->byte_id);
    meg_str_printf(&l.unk_surface, " \xE2\x81\x87 ");
    if ((r = meg_tok_mmap_file(&file, path, e)) < 0 || (r = check_not_text(&file, path, e)) < 0 ||
        (r = read_model(&l, (struct meg_pb){ file.p, file.p + file.n, file.p, path }, e)) < 0 ||
        (r = resolve_special_ids(&l, path, e)) < 0)
        goto out;
    *out = l.m;
    l.m = NULL;
out:
    meg_mmap_close(&file);
    meg_strtab_free(&l.matched);
    meg_strtab_free(&l.reserved);
    meg_str_free(&l.text);
    meg_str_free(&l.unk_surface);
    meg_str_free(&l.bos);
    meg_str_free(&l.eos);
    meg_str_free(&l.pad);
    meg_spm_model_free(l.m);
    return r;
}

void meg_spm_model_free(struct meg_spm_model *m)
{
    if (!m)
        return;
    meg_charsmap_free(&m->normalizer_spec.map);
    meg_str_free(&m->normalizer_spec.map_bytes);
    meg_str_free(&m->text);
    meg_str_free(&m->unk_surface);
    free(m->piece);
    free(m);
}
