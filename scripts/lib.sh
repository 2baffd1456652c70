# shellcheck shell=bash
#
# lib.sh - what the scripts here and in bench/ share.
#
# start_in_private_copy is the first thing that most of them call.  It
#
#   1. installs the Debian packages that are missing (the only step that needs
#      root or sudo, and none at all where nothing is missing);
#   2. makes a directory of its own, /tmp/pgparrep.XXXXXX, and copies this
#      source tree into it;
#   3. goes on there as an unprivileged user, since PostgreSQL refuses to run
#      as root and that user may not be able to read this tree.
#
# build_private_postgres then copies the installed PostgreSQL into the same
# directory and installs pgparrep into that copy (an installation may be moved
# as a whole).  Neither the system's PostgreSQL nor its clusters are touched,
# and removing the one directory removes everything but the packages.
#
# PG_CONFIG=/path/to/pg_config selects another PostgreSQL, of 15 to 18.

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Count and report one test, given its status; $keep becomes true if it failed.
passed=0
failed=0
keep=false
result() {
	if [ "$1" = 0 ]; then
		passed=$((passed + 1))
		say "ok - $2"
	else
		failed=$((failed + 1))
		# shellcheck disable=SC2034 # for the scripts
		keep=true
		say "not ok - $2"
	fi
}

# The median of the numbers on standard input.
median() { sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

# Run a command as root.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "must be root, or have sudo, to run: $*"
	fi
}

# Run a command as a user that PostgreSQL accepts: ourselves, or as root the
# one that Debian's packages make.
as_user() {
	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid=postgres --regid=postgres --init-groups "$@"
	else
		"$@"
	fi
}

is_installed() {
	dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'
}

# The major version to use: the newest one that is installed, else the one
# that the distribution's package "postgresql" stands for.
debian_major() {
	local v
	for v in 18 17 16 15; do
		if [ -x "/usr/lib/postgresql/$v/bin/postgres" ]; then
			echo "$v"
			return
		fi
	done
	apt-cache depends postgresql | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p'
}

install_packages() {
	local missing='' p major
	# libkrb5-dev and libssl-dev: the server's header libpq/libpq.h includes theirs
	local packages='gcc make libc6-dev libkrb5-dev libssl-dev perl libipc-run-perl procps'

	if ! command -v apt-get >/dev/null; then
		[ -n "${PG_CONFIG:-}" ] ||
			die "no apt-get here; install PostgreSQL 15 to 18 with its headers and set PG_CONFIG"
		return
	fi

	if [ -z "${PG_CONFIG:-}" ]; then
		major=$(debian_major)
		if [ -z "$major" ]; then
			# a slim image has no package lists
			as_root apt-get -qq update
			major=$(debian_major)
		fi
		[ -n "$major" ] || die "no package of PostgreSQL found"
		packages="$packages postgresql-$major postgresql-server-dev-$major"
		PG_CONFIG=/usr/lib/postgresql/$major/bin/pg_config
	fi

	for p in $packages "$@"; do
		is_installed "$p" || missing="$missing $p"
	done
	[ -n "$missing" ] || return 0

	say "installing$missing"
	# Installing a server makes and starts a cluster unless told otherwise.
	local dir=/etc/postgresql-common/createcluster.d
	as_root mkdir -p "$dir"
	say 'create_main_cluster = false' | as_root tee "$dir/pgparrep.conf" >/dev/null
	local out status=0
	# shellcheck disable=SC2086 # a list of words
	out=$(as_root apt-get -qq update 2>&1 &&
		as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
			--no-install-recommends $missing 2>&1 </dev/null) || status=$?
	as_root rm -f "$dir/pgparrep.conf"
	[ "$status" = 0 ] || { say "$out" >&2; die "could not install the packages"; }
}

# start_in_private_copy PACKAGES ARGS...: see the head of this file.  PACKAGES
# are wanted besides the usual ones, ARGS the script's own arguments.  Returns
# in the copy only, with $work set.
start_in_private_copy() {
	local packages=$1 top name v
	shift

	if [ -n "${PGPARREP_WORK:-}" ]; then
		work=$PGPARREP_WORK
		# a variable for libpq or for this file would change what follows
		unset PGPARREP_WORK
		for v in $(compgen -A export | grep -E '^PG[A-Z]+$'); do
			unset "$v"
		done
		export HOME="$work" TMPDIR="$work/tmp" LC_ALL=C
		mkdir "$TMPDIR"
		cd "$work" || exit
		return
	fi

	# shellcheck disable=SC2086 # a list of words
	install_packages $packages
	if [ "$(id -u)" = 0 ] && ! id postgres >/dev/null 2>&1; then
		useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin postgres
	fi

	top=$(cd "$(dirname "$0")/.." && pwd)
	name=$(basename "$(cd "$(dirname "$0")" && pwd)")/${0##*/}
	cd /
	work=$(as_user mktemp -d /tmp/pgparrep.XXXXXX)
	trap 'rm -rf "$work"' EXIT
	as_user mkdir "$work/src"
	tar -C "$top" --exclude=./.git --exclude=./build --exclude='*.o' --exclude='*.so' -cf - . |
		as_user tar -C "$work/src" --no-same-owner -xf -
	trap - EXIT
	export PGPARREP_WORK="$work" PG_CONFIG
	if [ "$(id -u)" = 0 ]; then
		exec setpriv --reuid=postgres --regid=postgres --init-groups "$work/src/$name" "$@"
	fi
	exec "$work/src/$name" "$@"
}

# build_private_postgres DIR [MAKE ARGUMENTS]: copy the PostgreSQL of PG_CONFIG
# to DIR, build pgparrep for it, install it there.  Sets PG_CONFIG and PATH to
# the copy.  Output goes to $work/build.log.
build_private_postgres() {
	local dir=$1 from
	shift

	# Debian keeps share and include apart from bin and lib; elsewhere they
	# are often below one prefix.  Keeping the relative paths is enough.
	mkdir -p "$dir"
	for from in "$(dirname "$("$PG_CONFIG" --bindir)")" \
		"$("$PG_CONFIG" --sharedir)" "$(dirname "$("$PG_CONFIG" --includedir-server)")" \
		"$("$PG_CONFIG" --pkgincludedir)" "$("$PG_CONFIG" --pkglibdir)"; do
		[ -e "$dir$from" ] || (cd / && cp -R --parents "${from#/}" "$dir")
	done
	PG_CONFIG=$dir$("$PG_CONFIG" --bindir)/pg_config
	PATH=$(dirname "$PG_CONFIG"):$PATH
	export PATH PG_CONFIG

	make -C "$work/src" clean all install PG_CONFIG="$PG_CONFIG" "$@" >>"$work/build.log" 2>&1 ||
		{ tail -n 40 "$work/build.log" >&2; die "the build failed"; }
}

# What a server needs to run pgparrep, as lines for postgresql.conf.  Minor
# releases from August 2026 on load an output plugin only if it is listed;
# older ones do not know that setting and would refuse to start with it.
server_settings() {
	say "wal_level = logical"
	say "shared_preload_libraries = 'pgparrep'"
	# not grep -q, which would leave postgres with a broken pipe
	if postgres --describe-config | grep '^output_plugin_libraries	' >/dev/null; then
		say "output_plugin_libraries = 'pgoutput, test_decoding, pgparrep'"
	fi
}

# Stop at once every server whose data directory lies below $work.
stop_servers() {
	local pidfile
	find "$work" -name postmaster.pid 2>/dev/null | while read -r pidfile; do
		pg_ctl -D "$(dirname "$pidfile")" -m immediate -w stop >/dev/null 2>&1 || :
	done
}
