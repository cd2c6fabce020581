#!/bin/sh
# Builds the native module in the folder $2 and installs it for the interpreter $1, both absolute; says in one line what
# came of it. Without a compiler the service runs in Python alone. `crates.lock` is Cargo.lock without the address of
# the registry, which cargo adds here.
set -u
python=$1
export CARGO_TARGET_DIR=$2
without='the service runs in Python alone'
cd "$(dirname "$0")" && mkdir -p "$2" || exit

build() {
    cargo generate-lockfile &&
    registry=$(sed -n 's/^source = //p' Cargo.lock | head -n 1) &&
    awk -v registry="$registry" '/^checksum/ { print "source = " registry } { print }' crates.lock >Cargo.lock &&
    cargo build --release --locked
}

install() {
    folder=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))') &&
    library=$(find "$CARGO_TARGET_DIR/release" -maxdepth 1 -name 'libholdfast_native.*' ! -name '*.d') &&
    cp "$library" "$folder/holdfast_native.abi3.so.new" &&
    mv "$folder/holdfast_native.abi3.so.new" "$folder/holdfast_native.abi3.so" &&
    "$python" -c 'import holdfast_native'
}

if ! command -v cargo >/dev/null; then
    echo "native module: not built, as cargo is missing; $without"
elif { build && install; } >"$2/build.log" 2>&1; then
    echo 'native module: built'
else
    echo "native module: not built, see $2/build.log; $without"
fi
