#!/bin/sh
# Compiles the NEON table for 64-bit ARM and compares it with the portable one on an emulator. On other machines it needs
#
#   apt-get install g++-aarch64-linux-gnu qemu-user-static
set -eu

compiler=${AARCH64_CXX:-aarch64-linux-gnu-g++}
emulator=${AARCH64_RUN-qemu-aarch64-static}
for tool in "$compiler" $emulator; do
    command -v "$tool" >/dev/null || {
        echo "check_neon.sh: $tool is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2
        exit 1
    }
done
folder=build/neon
mkdir -p "$folder"
"$compiler" -std=c++20 -O2 -Wall -Wextra -Werror -ffp-contract=off -static -Inative tools/neon_check.cpp \
    native/isa/neon.cpp native/isa/portable.cpp native/packed_tiles.cpp -o "$folder/neon_check"
$emulator "$folder/neon_check"
