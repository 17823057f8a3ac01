/* Frames of the board: two 32-bit words, kind and payload bytes, then the payload, as the host has them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "watchdog/internal.h"

enum { HEAD = 2 * sizeof(uint32_t), CONNECT_MS = 10000 };

struct address {
    struct sockaddr_storage s;
    socklen_t n;
};

/* ---- addresses ---- */

static bool make_address(struct address *a, int family, const void *addr, int port)
{
    memset(a, 0, sizeof *a);
    a->s.ss_family = (sa_family_t)family;
    if (family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)&a->s;

        in->sin_port = htons((uint16_t)port);
        memcpy(&in->sin_addr, addr, sizeof in->sin_addr);
        a->n = sizeof *in;
        return true;
    }
    if (family == AF_INET6) {
        struct sockaddr_in6 *in = (struct sockaddr_in6 *)&a->s;

        in->sin6_port = htons((uint16_t)port);
        memcpy(&in->sin6_addr, addr, sizeof in->sin6_addr);
        a->n = sizeof *in;
        return true;
    }
    return false;
}

static void invite_to(struct watchdog_endpoint *to, const struct sockaddr *s)
{
    const int most = sizeof to->addr / sizeof *to->addr;

    if (to->naddrs == most || (s->sa_family != AF_INET && s->sa_family != AF_INET6))
        return;
    to->addr[to->naddrs].family = s->sa_family;
    if (s->sa_family == AF_INET)
        memcpy(to->addr[to->naddrs++].addr, &((const struct sockaddr_in *)s)->sin_addr, 4);
    else if (!IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)s)->sin6_addr))
        memcpy(to->addr[to->naddrs++].addr, &((const struct sockaddr_in6 *)s)->sin6_addr, 16);
}

/* The addresses of this host that others may reach: of interfaces that are up, IPv4 first. */
static void invite_to_host(struct watchdog_endpoint *to)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) < 0)
        return;
    for (int pass = 0; pass < 2; pass++)
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            if (i->ifa_addr && (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK) &&
                i->ifa_addr->sa_family == (pass ? AF_INET6 : AF_INET))
                invite_to(to, i->ifa_addr);
    freeifaddrs(all);
}

/* ---- sockets ---- */

static void prepare(int fd)
{
    const int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void watchdog_close_fd(int *fd)
{
    const int why = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = why;
}

/* One socket for both families where the machine has IPv6. */
static int bound(struct address *at, bool is_local, int port)
{
    static const struct in6_addr any6 = IN6ADDR_ANY_INIT;
    const in_addr_t any = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY);
    const int zero = 0, one = 1;
    int fd = -1;

    if (!is_local && (fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) >= 0) {
        make_address(at, AF_INET6, &any6, port);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) == 0 &&
            bind(fd, (struct sockaddr *)&at->s, at->n) == 0)
            return fd;
        watchdog_close_fd(&fd);
    }
    if ((fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
        return -1;
    make_address(at, AF_INET, &any, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at->s, at->n) == 0)
        return fd;
    watchdog_close_fd(&fd);
    return -1;
}

int watchdog_listen(struct watchdog_endpoint *to, bool is_local, int port)
{
    struct address at;
    int fd;

    memset(to, 0, sizeof *to);
    if ((fd = bound(&at, is_local, port)) < 0)
        return -1;
    if (listen(fd, SOMAXCONN) < 0 || getsockname(fd, (struct sockaddr *)&at.s, &at.n) < 0 ||
        getrandom(to->token, sizeof to->token, 0) != sizeof to->token) {
        watchdog_close_fd(&fd);
        return -1;
    }
    to->port = ntohs(at.s.ss_family == AF_INET ? ((struct sockaddr_in *)&at.s)->sin_port
                                               : ((struct sockaddr_in6 *)&at.s)->sin6_port);
    if (is_local)
        invite_to(to, (struct sockaddr *)&at.s);
    else
        invite_to_host(to);
    to->is_open = 1;
    return fd;
}

const char *watchdog_resolve(struct watchdog_endpoint *to, const struct meg_rendezvous *m)
{
    const struct addrinfo want = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    const int r = getaddrinfo(m->is_local ? "127.0.0.1" : m->host, NULL, &want, &found);

    if (r != 0)
        return gai_strerror(r);
    memset(to, 0, sizeof *to);
    for (const struct addrinfo *i = found; i; i = i->ai_next)
        invite_to(to, i->ai_addr);
    freeaddrinfo(found);
    to->port = m->port;
    memcpy(to->token, m->token, sizeof to->token);
    to->is_open = 1;
    return NULL;
}

static int connect_to(const struct address *a)
{
    const int fd = socket(a->s.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    socklen_t n = sizeof(int);
    int failed = 0;

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&a->s, a->n) == 0)
        return fd;
    failed = errno;
    if (failed == EINPROGRESS) {
        failed = ETIMEDOUT;
        if (poll(&p, 1, CONNECT_MS) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &n);
    }
    if (!failed)
        return fd;
    close(fd);
    errno = failed;
    return -1;
}

int watchdog_connect(const struct watchdog_endpoint *to)
{
    errno = EADDRNOTAVAIL;
    for (int i = 0; i < to->naddrs; i++) {
        struct address a;
        int fd;

        if (make_address(&a, to->addr[i].family, to->addr[i].addr, to->port) && (fd = connect_to(&a)) >= 0) {
            prepare(fd);
            return fd;
        }
    }
    return -1;
}

int watchdog_accept(int listening)
{
    const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0)
        prepare(fd);
    return fd;
}

void watchdog_copy_name(char *to, const char *from, size_t cap)
{
    size_t n = 0;

    for (; n + 1 < cap && from[n]; n++)
        to[n] = (unsigned char)from[n] < ' ' || from[n] == 0x7f ? '?' : from[n];
    to[n] = 0;
}

/* ---- frames ---- */

void watchdog_send(struct watchdog_conn *l, enum watchdog_frame_type kind, const void *payload, size_t n)
{
    unsigned char out[sizeof l->in];
    const uint32_t head[2] = { (uint32_t)kind, (uint32_t)n };
    ssize_t sent;

    if (l->fd < 0 || l->is_clogged)
        return;
    MEG_ASSERT_LE(HEAD + n, sizeof out);
    memcpy(out, head, HEAD);
    if (n)
        memcpy(out + HEAD, payload, n);
    sent = send(l->fd, out, HEAD + n, MSG_NOSIGNAL);
    l->is_clogged = sent > 0 && (size_t)sent < HEAD + n;
}

static bool is_whole(const struct watchdog_conn *l, uint32_t head[2])
{
    if (l->have < HEAD)
        return false;
    memcpy(head, l->in, HEAD);
    return head[1] > sizeof l->in - HEAD || l->have >= HEAD + head[1];
}

static bool is_sound(const uint32_t head[2])
{
    static const uint32_t nbytes[] = { [WATCHDOG_JOIN] = sizeof(struct watchdog_join_request),
                                       [WATCHDOG_WELCOME] = sizeof(struct watchdog_welcome),
                                       [WATCHDOG_HEARTBEAT] = sizeof(struct watchdog_rank_state),
                                       [WATCHDOG_QUERY] = 0,
                                       [WATCHDOG_TIMEOUT] = 0,
                                       [WATCHDOG_EXITING] = sizeof(struct watchdog_exit),
                                       [WATCHDOG_EXIT_ALL] = sizeof(struct watchdog_exit),
                                       [WATCHDOG_KV_ENTRY] = sizeof(struct meg_kv_store_entry),
                                       [WATCHDOG_KV_GET] = sizeof(struct meg_kv_store_entry),
                                       [WATCHDOG_BYE] = 0 };

    return head[0] >= WATCHDOG_JOIN && head[0] <= WATCHDOG_BYE && head[1] == nbytes[head[0]];
}

/* The frame that the last call gave, if any, makes room. */
static void drop_taken(struct watchdog_conn *l)
{
    l->have -= l->taken;
    memmove(l->in, l->in + l->taken, l->have);
    l->taken = 0;
}

int watchdog_recv(struct watchdog_conn *l, enum watchdog_frame_type *kind, const void **payload)
{
    uint32_t head[2];
    ssize_t n;

    drop_taken(l);
    while (!is_whole(l, head)) {
        n = recv(l->fd, l->in + l->have, sizeof l->in - l->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n <= 0)
            return -1;
        l->have += (size_t)n;
    }
    if (!is_sound(head))
        return -1;
    *kind = (enum watchdog_frame_type)head[0];
    *payload = l->in + HEAD;
    l->taken = HEAD + head[1];
    return 1;
}
