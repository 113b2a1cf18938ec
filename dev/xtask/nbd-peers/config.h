// What the `configure` of nbd and of libnbd finds on Linux with glibc and GnuTLS, as far as the programs need it.
#define PACKAGE_VERSION ""
#define HAVE_GNUTLS 1
#define HAVE_MKSTEMP 1
#define SIZEOF_UNSIGNED_SHORT_INT 2
#define SIZEOF_UNSIGNED_INT 4
#define SIZEOF_UNSIGNED_LONG_INT 8
#define SIZEOF_UNSIGNED_LONG_LONG_INT 8
