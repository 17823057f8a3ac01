/* internal.h - declarations shared by the files of this module. */
#pragma once
#include "foreign/foreign.h"

/* The first bytes p [n] of the file at path. */
struct foreign_prefix {
    const char *path;
    const unsigned char *p;
    size_t n;
};

/* Functions that recognise a format. */
typedef bool foreign_test(const struct foreign_prefix *f);
foreign_test foreign_is_nemo, foreign_is_tar, foreign_is_torch_zip, foreign_is_npz, foreign_is_safetensors,
    foreign_is_gguf, foreign_is_zlib, foreign_is_sentencepiece, foreign_is_onnx, foreign_is_saved_model,
    foreign_is_bzip2, foreign_is_binary, foreign_is_arrow_stream;
foreign_test foreign_is_lfs_pointer, foreign_is_annex_pointer, foreign_is_html, foreign_is_xml, foreign_is_hub_error,
    foreign_is_utf32, foreign_is_utf16, foreign_is_json_array, foreign_is_json_document, foreign_is_warc;

/* Return the number of leading bytes that are whitespace, after a byte order mark of UTF-8 if there is one. */
size_t foreign_skip_space(const struct foreign_prefix *f);

/* Return whether the bytes contain a control character that does not occur in text. */
bool foreign_has_control(const struct foreign_prefix *f);

/* Read at most `size` bytes at the beginning of a regular file.  Return their number; 0 if the file cannot be read. */
size_t foreign_read(const char *path, void *buf, size_t size);

/* Return the size in bytes that a Git LFS pointer states, or -1. */
int64_t foreign_lfs_size(const struct foreign_prefix *f);
