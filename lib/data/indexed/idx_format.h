/* idx_format.h - the header of an index file PREFIX.idx.  meg-idx(5) documents the format. */
#pragma once

/* 9 bytes of magic, u64 version, u8 token type, u64 number of sequences, u64 number of document index entries */
#define MEG_IDX_MAGIC "MMIDIDX\0" /* the ninth byte is the literal's terminating zero */
#define MEG_IDX_HEADER 34
