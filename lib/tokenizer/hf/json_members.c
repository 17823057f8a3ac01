/* json_members.c - read JSON members that several components of a tokenizer.json have. */
#include "io/json.h"
#include "tokenizer/hf/internal.h"

enum { MAX_ID = (1 << 24) - 1 };

int meg_hf_get_type(const json_t *part, const char **type, const char *where, struct meg_err *e)
{
    if (!json_is_object(part))
        return meg_fail(e, MEG_EFORMAT, "%s: expected an object with a \"type\"", where);
    return meg_json_get_str(part, "type", MEG_JSON_REQUIRED, type, where, e);
}

int meg_hf_unknown_type(const char *type, const char *where, struct meg_err *e)
{
    return meg_fail(e, MEG_EFORMAT, "%s: type '%s' is not supported", where, type);
}

int meg_hf_get_id(const json_t *value, const char *what, const char *where, int32_t *id, struct meg_err *e)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > MAX_ID)
        return meg_fail(e, MEG_EFORMAT, "%s: the id of '%s' must be an integer from 0 to %d", where, what, MAX_ID);
    *id = (int32_t)json_integer_value(value);
    return 0;
}
