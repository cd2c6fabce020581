#!/bin/sh
# Builds the native module with the address sanitizer, debug assertions and checks of overflows, in the folder $2, and
# runs the tests that compare it with Python on the interpreter $1; both are absolute. Needs a nightly Rust, gcc's
# sanitizer, and the Cargo.lock that `build.sh` makes.
set -eu
python=$1
export CARGO_TARGET_DIR=$2
target=$(rustc --print host-tuple)
RUSTFLAGS='-Zsanitizer=address -C debug-assertions -C overflow-checks' \
    cargo +nightly build --locked --target "$target" --manifest-path "$(dirname "$0")/Cargo.toml"
mkdir -p "$2/module"
cp "$2/$target/debug/libholdfast_native.so" "$2/module/holdfast_native.abi3.so"
# Python itself leaks at its end, and its own allocator would hide an overrun.
ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc LD_PRELOAD=$(gcc -print-file-name=libasan.so) PYTHONPATH=$2/module \
    "$python" -m pytest -n 0 sqs_api/tests/test_native.py sqs_api/tests/test_native_payloads.py
