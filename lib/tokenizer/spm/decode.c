/* decode.c - decode ids of a SentencePiece model incrementally. */
#include <string.h>
#include "tokenizer/spm/internal.h"
#include "unicode/utf8.h"

/* Bits of meg_detok.state. */
enum {
    HAS_TEXT = 1,      /* some text was decoded, so leading spaces of pieces are kept */
    REMOVED_SPACE = 2, /* the leading space of the first piece was removed; no further space is removed */
};

/* Append a piece with U+2581 replaced by a space. */
static void add_piece(struct meg_str *out, const char *s, size_t n)
{
    const size_t nsymbol = strlen(MEG_SPM_SPACE_SYMBOL);

    for (size_t i = 0; i < n;) {
        bool is_space = n - i >= nsymbol && memcmp(s + i, MEG_SPM_SPACE_SYMBOL, nsymbol) == 0;

        meg_str_add(out, is_space ? " " : s + i, 1);
        i += is_space ? nsymbol : 1;
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

/*
 * Move pending bytes to out, and replace each byte that is not part of a character by U+FFFD.  If !is_last, an
 * incomplete character at the end remains pending.
 */
static void flush_bytes(struct meg_str *pending, bool is_last, struct meg_str *out)
{
    size_t at = 0;

    while (at < pending->n) {
        int32_t cp;
        int len = meg_utf8_decode(pending->s + at, (int64_t)(pending->n - at), &cp);

        if (len > 0) {
            meg_str_add(out, pending->s + at, (size_t)len);
        } else {
            if (!is_last && at + (size_t)-len == pending->n)
                break;
            meg_str_add(out, "\xEF\xBF\xBD", 3);
            len = 1;
        }
        at += (size_t)len;
    }
    meg_str_remove_prefix(pending, at);
}

/* Decode a piece that is not a byte piece. */
static void decode_piece(const struct meg_spm *s, struct meg_detok *d, int32_t id, struct meg_str *out)
{
    const struct meg_spm_model *m = s->model;
    const size_t was = out->n, nsymbol = strlen(MEG_SPM_SPACE_SYMBOL);
    struct meg_str piece = meg_spm_piece_text(m, id);
    bool at_start = !(d->state & (HAS_TEXT | REMOVED_SPACE));

    if (m->piece[id].type == MEG_SPM_CONTROL || m->piece[id].type == MEG_SPM_UNKNOWN) {
        meg_spm_bytes(s, &id, 1, out);
    } else if (at_start && (m->normalizer_spec.add_dummy_prefix || m->normalizer_spec.remove_extra_whitespaces) &&
               piece.n >= nsymbol && memcmp(piece.s, MEG_SPM_SPACE_SYMBOL, nsymbol) == 0) {
        add_piece(out, piece.s + nsymbol, piece.n - nsymbol);
        d->state |= m->normalizer_spec.remove_extra_whitespaces ? 0 : REMOVED_SPACE;
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
