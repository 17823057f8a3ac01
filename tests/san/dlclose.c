/*
 * dlclose.c - a dlclose that does not unload the library, linked into every program under SAN=1.
 *
 * Libraries, mostly MPI, close their plugins before the process ends.  As the plugins stay loaded, LeakSanitizer finds
 * the memory to which their data points, and the stack of a leak has the name of the plugin, which tests/lsan.supp
 * matches.
 */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
