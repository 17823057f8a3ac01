/* Ids of a SentencePiece model back to text, as much as the ids so far decide. */
#include <string.h>

#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

/* The state of a meg_detok. */
enum {
    HAS_TEXT = 1,   /* something was decoded: blanks at the beginning of pieces stay */
    TOOK_BLANK = 2, /* the piece before lost its blank, the only one that goes */
};

/* Append a piece with its blanks. */
static void add_piece(struct meg_str *out, const char *s, size_t n)
{
    const size_t blank = strlen(MEG_SPM_SPACE_SYMBOL);

    for (size_t i = 0; i < n;) {
        bool is_blank = n - i >= blank && memcmp(s + i, MEG_SPM_SPACE_SYMBOL, blank) == 0;

        meg_str_add(out, is_blank ? " " : s + i, 1);
        i += is_blank ? blank : 1;
    }
}

void meg_spm_bytes(const struct meg_spm *s, const int32_t *ids, int64_t n, struct meg_str *out)
{
    const struct meg_spm_model *m = s->model;

    for (int64_t i = 0; i < n; i++) {
        struct meg_str piece = meg_spm_piece_text(m, ids[i]);
        char byte;

        switch (m->piece[ids[i]].type) {
        case MEG_SPM_CONTROL: break;
        case MEG_SPM_UNKNOWN: meg_str_add(out, m->unk_surface.s, m->unk_surface.n); break;
        case MEG_SPM_BYTE:
            byte = (char)meg_spm_piece_to_byte(piece.s, piece.n);
            meg_str_add(out, &byte, 1);
            break;
        default: add_piece(out, piece.s, piece.n);
        }
    }
}

/* Bytes held back become characters, and U+FFFD each byte that is part of none; what may yet become one
 * stays unless is_last. */
static void flush_bytes(struct meg_str *held, bool is_last, struct meg_str *out)
{
    size_t at = 0;

    while (at < held->n) {
        int32_t cp;
        int len = meg_utf8_decode(held->s + at, (int64_t)(held->n - at), &cp);

        if (len > 0) {
            meg_str_add(out, held->s + at, (size_t)len);
        } else {
            if (!is_last && at + (size_t)-len == held->n)
                break;
            meg_str_add(out, "\xEF\xBF\xBD", 3);
            len = 1;
        }
        at += (size_t)len;
    }
    meg_str_remove_prefix(held, at);
}

/* A piece that is no byte. */
static void decode_piece(const struct meg_spm *s, struct meg_detok *d, int32_t id, struct meg_str *out)
{
    const struct meg_spm_model *m = s->model;
    const size_t was = out->n, blank = strlen(MEG_SPM_SPACE_SYMBOL);
    struct meg_str piece = meg_spm_piece_text(m, id);
    bool at_start = !(d->state & (HAS_TEXT | TOOK_BLANK));

    if (m->piece[id].type == MEG_SPM_CONTROL || m->piece[id].type == MEG_SPM_UNKNOWN) {
        meg_spm_bytes(s, &id, 1, out);
    } else if (at_start && (m->norm.add_dummy_prefix || m->norm.remove_extra_whitespaces) && piece.n >= blank &&
               memcmp(piece.s, MEG_SPM_SPACE_SYMBOL, blank) == 0) {
        add_piece(out, piece.s + blank, piece.n - blank);
        d->state |= m->norm.remove_extra_whitespaces ? 0 : TOOK_BLANK;
    } else {
        add_piece(out, piece.s, piece.n);
    }
    d->state |= out->n > was ? HAS_TEXT : 0;
}

void meg_spm_decode(const struct meg_spm *s, struct meg_detok *d, const int32_t *ids, int64_t n, bool is_last,
                    struct meg_str *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (s->model->piece[ids[i]].type == MEG_SPM_BYTE) {
            meg_spm_bytes(s, ids + i, 1, &d->pending);
            d->state |= HAS_TEXT;
        } else {
            flush_bytes(&d->pending, true, out);
            decode_piece(s, d, ids[i], out);
        }
    }
    flush_bytes(&d->pending, is_last, out);
}
