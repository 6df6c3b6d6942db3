#!/bin/sh
# Says what this machine lacks to build forerun, and how to get it.
#
#   check_prerequisites.sh [PYTHON]              one line per missing thing on stderr, exit code 1 if there is any
#   check_prerequisites.sh --packages [PYTHON]   the missing things as Debian package names on stdout, exit code 0,
#                                                and what only the tests need: chromium, without which those of the
#                                                server's page are skipped, and Node.js with npm, without which that of
#                                                OpenAI's client for JavaScript is
#
# CMake and Ninja are not looked for: pip brings them when the system has none.
set -eu

list_packages=no
if [ "${1:-}" = "--packages" ]; then
    list_packages=yes
    shift
fi
python=${1:-python3}
packages=""
problems=""

lacks() { # PACKAGE MESSAGE
    packages="$packages $1"
    problems="$problems  $2
"
}

if ! command -v "$python" >/dev/null 2>&1; then
    lacks "python3 python3-dev python3-venv" "no '$python': Python 3.11 or newer is needed (make PYTHON=... names another)"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    problems="$problems  '$python' is Python $version, 3.11 or newer is needed (make PYTHON=... names another)
"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || lacks python3-venv "Python's venv module (package python3-venv)"
    "$python" - <<'END' || lacks python3-dev "Python's C headers (package python3-dev)"
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
END
fi

compiler=${CXX:-}
if [ -n "$compiler" ]; then
    command -v "${compiler%% *}" >/dev/null 2>&1 || lacks g++ "the C++ compiler '$compiler' that CXX names"
elif ! command -v g++ >/dev/null 2>&1 && ! command -v clang++ >/dev/null 2>&1 && ! command -v c++ >/dev/null 2>&1; then
    lacks g++ "a C++20 compiler (package g++)"
fi
command -v make >/dev/null 2>&1 || lacks make "make (package make)"

if [ "$list_packages" = yes ]; then
    command -v chromium >/dev/null 2>&1 || packages="$packages chromium"
    command -v node >/dev/null 2>&1 || packages="$packages nodejs"
    command -v npm >/dev/null 2>&1 || packages="$packages npm"
    echo $packages
    exit 0
fi
if [ -n "$problems" ]; then
    printf 'forerun cannot be built here yet. Missing:\n%s' "$problems" >&2
    [ -z "$packages" ] || printf 'On Debian or Ubuntu: sudo apt-get install%s\n' "$packages" >&2
    exit 1
fi
