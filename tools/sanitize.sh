#!/bin/sh
# Builds the native module with a sanitizer, into a folder of its own, and runs tests on it.
#
#   sanitize.sh address|thread PYTHON [PYTEST ARGUMENTS]      default: the tests that call native code directly
#
# address  AddressSanitizer and UndefinedBehaviorSanitizer. Leaks are not looked for: the interpreter never frees all.
# thread   ThreadSanitizer. The interpreter and numpy are not instrumented, but the locks and threads that they use are
#          seen, since they come from the C library.
#
# Instrumented are all of native/, every kernel table with all checks; tests run the tables that this CPU has.
# native/memory.cpp tells AddressSanitizer where its buffers end. Not seen: loads and stores of tiles and of masked
# vectors, which no compiler instruments; and a step from one array into the next of the same weight arena, KV store or
# program workspace.
#
# Only the module is instrumented, so the sanitizer's runtime is loaded before the interpreter. The compiler is g++, or
# the one that CXX names, if its runtimes have the names of gcc's. PYTHON must have the build tools, pytest and what
# forerun needs, but no editable installation of it, which would win over the build here.
set -eu

mode=$1
bin=$(cd "$(dirname "$(command -v "$2")")" && pwd)
python=$bin/$(basename "$2")
shift 2
[ $# -gt 0 ] || set -- tests/backends tests/speculation/test_suffix_automaton.py tests/speculation/test_suffix.py
export PATH="$bin:$PATH" # CMake and Ninja, where they come from pip

compiler=${CXX:-g++}
unshuffled=
case $mode in
address)
    sanitizers=address,undefined
    runtimes="libasan.so libubsan.so"
    export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
    export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
    ;;
thread)
    sanitizers=thread
    runtimes=libtsan.so
    export TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"
    export OPENBLAS_NUM_THREADS=1 # numpy's own threads are none of our business
    # ThreadSanitizer knows only some layouts of memory. A container may forbid to ask for one.
    setarch -R true 2>/dev/null && unshuffled="setarch -R"
    ;;
*)
    echo "sanitize.sh: no such mode '$mode': choose address or thread" >&2
    exit 2
    ;;
esac

# -O1: at -O2 the checks in kernels, whose functions are all inlined into one, take a compiler half an hour.
folder=$PWD/build/sanitize-$mode
mkdir -p "$folder"
nanobind=$("$python" -m nanobind --cmake_dir)
cmake -S . -B "$folder" -G Ninja -DSKBUILD=ON -DFORERUN_SANITIZE=$sanitizers \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" \
    -DCMAKE_CXX_COMPILER="$compiler" -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$nanobind" \
    >"$folder.log" 2>&1 || { cat "$folder.log" >&2 && exit 1; }
cmake --build "$folder"

# The package as it stands, with this module in it.
package=$folder/site/forerun
rm -rf "$folder/site"
mkdir -p "$package"
for entry in "$PWD"/src/forerun/*; do
    case $entry in *.so | */__pycache__) ;; *) ln -s "$entry" "$package" ;; esac
done
ln -s "$folder"/_native*.so "$package"
export PYTHONPATH="$folder/site"

preload=
for library in $runtimes libstdc++.so; do # libstdc++ too: the runtimes look for its throw when they start
    preload="$preload $("$compiler" -print-file-name="$library")"
done
run() {
    LD_PRELOAD=$preload $unshuffled "$python" "$@"
}
run -c "import forerun._native as m, sys; sys.exit(not m.__file__.startswith(sys.argv[1]))" "$package" || {
    echo "sanitize.sh: $python does not load the module built here; an editable installation comes first: remove it" >&2
    exit 1
}
echo "tests under $sanitizers"
# Reports go past pytest's capture of the file descriptors: they end the process, and would be lost with it.
run -m pytest --capture=sys -p no:cacheprovider -p no:faulthandler "$@"
