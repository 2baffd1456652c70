# pgparrep: parallel logical replication for stock PostgreSQL
#
# Usual PGXS targets: make, make install, make installcheck.
# make installcheck needs a running server with wal_level = logical and
# pgparrep installed; scripts/test provides one.

EXTENSION = pgparrep
EXTVERSION = 0.1.0
MODULE_big = pgparrep
DATA = $(wildcard extension/*--*.sql)
PGFILEDESC = "pgparrep - parallel logical replication"

OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c src/*/*.c)))
OUR_HEADERS = $(wildcard include/*.h)

REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
TAP_TESTS = 1

PG_CPPFLAGS = -I$(srcdir)/include -DPGPARREP_VERSION='"$(EXTVERSION)"'
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers -Wno-cast-function-type $(COPT_EXTRA)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)

# LLVM bitcode is of no use here (no function is called from a query's inner
# loop) and needs clang, which slim machines lack.
override with_llvm = no

include $(PGXS)

$(OBJS): $(OUR_HEADERS)

# Pure logic, tested without a server: make unit
UNIT_TESTS = $(patsubst %.c,%,$(sort $(wildcard unit/test_*.c)))
UNIT_SOURCES = src/subscriber/depend.c src/protocol/fstream.c src/protocol/native.c

$(UNIT_TESTS): %: %.c unit/unit.h $(UNIT_SOURCES) $(OUR_HEADERS)
	$(CC) $(CPPFLAGS) $(CFLAGS) -o $@ $< $(UNIT_SOURCES) \
		-L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport

unit: $(UNIT_TESTS)
	$(PROVE) --exec '' $(UNIT_TESTS)

# What comes from the wire, with sanitizers: "make replay" runs the corpus, "make
# fuzz" builds what fuzz/stream searches with.
FUZZ_SOURCES = fuzz/stream.c src/protocol/fstream.c src/protocol/native.c
FUZZ_FLAGS = -g -O1 -fno-omit-frame-pointer -fno-sanitize-recover=undefined
FUZZ_LIBS = -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport

fuzz/stream_replay: fuzz/replay.c $(FUZZ_SOURCES) $(OUR_HEADERS)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(FUZZ_FLAGS) -fsanitize=address,undefined \
		-o $@ $< $(FUZZ_SOURCES) $(FUZZ_LIBS)

fuzz/stream_fuzzer: $(FUZZ_SOURCES) $(OUR_HEADERS)
	clang -w $(CPPFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined \
		-o $@ $(FUZZ_SOURCES) $(FUZZ_LIBS)

replay: fuzz/stream_replay
	fuzz/stream_replay $(sort $(wildcard fuzz/corpus/*))

fuzz: fuzz/stream_fuzzer

.PHONY: unit replay fuzz
EXTRA_CLEAN += $(UNIT_TESTS) fuzz/stream_replay fuzz/stream_fuzzer
